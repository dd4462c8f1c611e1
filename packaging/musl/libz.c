/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The function of zlib that CPython's module binascii needs, which zipfile and importlib.metadata
 * import. It needs no libc. */
unsigned long crc32(unsigned long crc, const unsigned char *bytes, unsigned length)
{
	if (!bytes)
		return 0;
	crc ^= 0xffffffff;
	for (unsigned i = 0; i < length; i++) {
		crc ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
	}
	return crc ^ 0xffffffff;
}
