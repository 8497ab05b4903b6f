from tests.devices.box import box as box
from tests.devices.box import make_box as make_box
from tests.devices.boxed import boxed as boxed
