"""Running Headscope for many: several processes behind one address."""
