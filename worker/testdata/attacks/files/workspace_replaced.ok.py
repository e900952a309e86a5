import os

os.makedirs("/workspace/sub", exist_ok=True)
os.rename("/workspace/sub", "/workspace/renamed_sub")
os.rmdir("/workspace/renamed_sub")
