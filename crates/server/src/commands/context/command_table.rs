//! Look-up of commands by name.
//!
//! Folds a name to lower case in a 16-byte integer and probes a hash table that is built at compile time.

use super::command_row::Command;

/// Most bytes of a command's name.
pub(in crate::commands) const NAME_BYTES_MAX: usize = 16;
const SLOTS: usize = 256;

/// All commands.
pub(crate) struct CommandTable {
    rows: &'static [Command],
    /// Hash table from folded names to positions in `rows` plus one; 0 is empty.
    slots: [(u128, u8); SLOTS],
}

impl CommandTable {
    /// Creates a table of `rows`, whose names differ.
    pub(in crate::commands) const fn new(rows: &'static [Command]) -> CommandTable {
        let mut slots = [(0, 0); SLOTS];
        let mut at = 0;
        while at < rows.len() {
            let name = fold(rows[at].name.as_bytes());
            let mut slot = slot_of(name);
            while slots[slot].1 != 0 {
                slot = (slot + 1) % SLOTS;
            }
            slots[slot] = (name, at as u8 + 1);
            at += 1;
        }
        CommandTable { rows, slots }
    }

    /// The rows, in their order.
    pub(in crate::commands) fn rows(&self) -> &'static [Command] {
        self.rows
    }

    /// All commands and subcommands.
    pub(in crate::commands) fn every(&self) -> impl Iterator<Item = &'static Command> + use<> {
        let of_row = |row: &'static Command| std::iter::once(row).chain(row.subcommands);
        self.rows.iter().flat_map(of_row)
    }

    /// Finds the command or `container|subcommand` with this name, in either case.
    pub(in crate::commands) fn named(&self, name: &[u8]) -> Option<&'static Command> {
        match name.iter().position(|&b| b == b'|') {
            None => self.find(name),
            Some(bar) => self.find(&name[..bar])?.subcommand(&name[bar + 1..]),
        }
    }

    /// Finds the command `name`, in either case.
    #[inline]
    pub(in crate::commands) fn find(&self, name: &[u8]) -> Option<&'static Command> {
        if name.len() > NAME_BYTES_MAX {
            return None;
        }
        let folded = fold(name);
        let mut slot = slot_of(folded);
        loop {
            match self.slots[slot] {
                (_, 0) => return None,
                (found, at) if found == folded => {
                    // A leading NUL does not change the folded number, so the length is compared too.
                    let command = &self.rows[usize::from(at) - 1];
                    return (command.name.len() == name.len()).then_some(command);
                }
                _ => slot = (slot + 1) % SLOTS,
            }
        }
    }
}

/// Folds a name of up to 16 bytes to a number, with letters in lower case.
#[inline]
const fn fold(name: &[u8]) -> u128 {
    let mut folded = 0u128;
    let mut at = 0;
    while at < name.len() {
        folded = folded << 8 | name[at].to_ascii_lowercase() as u128;
        at += 1;
    }
    folded
}

#[inline]
const fn slot_of(folded: u128) -> usize {
    let mixed = (folded as u64 ^ (folded >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as usize % SLOTS
}
