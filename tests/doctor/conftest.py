from tests.devices.box import box as box
from tests.devices.box import make_box as make_box
