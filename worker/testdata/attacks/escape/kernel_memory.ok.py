assert any("[heap]" in line or "[stack]" in line for line in open("/proc/self/maps"))
