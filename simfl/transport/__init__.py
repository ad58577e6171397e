"""Messages between server and clients: encoding, decoding and byte accounting."""
