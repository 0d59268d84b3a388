//! A hash for names of objects and for what is stored.

/// FNV-1a: the same in every version and process, because names of objects and stored answers depend on it.
pub fn stable_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, add)
}
