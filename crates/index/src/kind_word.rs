//! The word of the superblock that names a table's kind.

use farbank_pm::WORD;

/// Byte of the kind word that says whether the table has a seed.
const SEEDED: usize = WORD - 1;

/// Encodes a table's kind as a word: its name of at most seven letters, and a byte that is 1 if the table has a hash
/// seed. Programs without support for seeds therefore reject such a table.
pub(crate) fn kind_of(name: &str, seed: u64) -> u64 {
    let mut word = [0; WORD];
    for (byte, letter) in word[..SEEDED].iter_mut().zip(name.bytes()) {
        *byte = letter;
    }
    word[SEEDED] = u8::from(seed != 0);
    u64::from_le_bytes(word)
}

/// Returns the name in a kind word.
pub(crate) fn name_of(kind: u64) -> String {
    let letters = kind.to_le_bytes();
    String::from_utf8_lossy(&letters[..SEEDED])
        .trim_end_matches('\0')
        .into()
}
