"""dcgmi as it answers on a node with two A100: `discovery -l`, and `dmon` line by line."""

import sys
import time

_DISCOVERY = """\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: GPU-a5e25d3c-0f3d-4b1e-9a0b-5b1f0c2d7e01                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA A100-SXM4-80GB                                          |
|        | PCI Bus ID: 00000000:0B:00.0                                         |
|        | Device UUID: GPU-a5e25d3c-0f3d-4b1e-9a0b-5b1f0c2d7e02                |
+--------+----------------------------------------------------------------------+
0 NvSwitches found.
+-----------+
| Switch ID |
+-----------+
+-----------+
0 CPUs found.
"""
#: By DCGM's number, as it prints them.
_VALUES = {
    "203": "97", "1001": "0.981", "1002": "0.874", "1003": "0.312", "1004": "0.551", "1005": "0.402",
    "1006": "0.000", "1007": "0.120", "1008": "N/A", "1009": "1234567890", "1010": "4321000000",
    "1011": "210000000000", "1012": "9223372036854775794", "252": "40960", "250": "81920",
    "155": "312.442", "156": "7654321000", "150": "61", "100": "1410", "1016": "0.043", "1076": "N/A",
    "1078": "N/A", "112": "4",
    "113": "1410",
    "1013": "0.001",
}  # fmt: skip

if sys.argv[1] == "discovery":
    print(_DISCOVERY, end="")
elif sys.argv[1] == "dmon":
    given = dict(zip(sys.argv[2::2], sys.argv[3::2], strict=True))
    fields = given["-e"].split(",")
    print("#Entity   " + "".join(f"{'F' + field:12}" for field in fields))
    print("ID" + " " * 40)
    while True:
        for gpu in given["-i"].split(","):
            print(f"GPU {gpu}     " + "".join(f"{_VALUES[field]:11} " for field in fields), flush=True)
        time.sleep(int(given["-d"]) / 1000)
