"""The cluster's executor on the local bootstrap: real node processes and real trials, on one machine."""
