"""Ways into inference engines: `sparse_mla.integrations.sglang`."""
