import os

assert os.access("/sandfarm/agent", os.R_OK) or True
