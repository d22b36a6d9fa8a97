import subprocess
import sys


def test_a_kernel_that_imports_the_package_loads_no_web_server():
    program = (
        "import sys, gipfel_extension\n"
        "assert gipfel_extension._jupyter_labextension_paths()[0]['dest'] == '@gipfel/extension'\n"
        "heavy = {'tornado', 'jupyter_server', 'pydantic', 'pyarrow', 'zmq'} & set(sys.modules)\n"
        "sys.exit(str(sorted(heavy)) if heavy else 0)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
