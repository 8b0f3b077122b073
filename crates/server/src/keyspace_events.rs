//! Classes of keyspace notifications (`notify-keyspace-events`).

use std::fmt;
use std::str::FromStr;

/// A set of classes of events, and which channels receive them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KeyspaceEvents(u32);

macro_rules! classes {
    ($($(#[$doc:meta])* $name:ident $letter:literal $bit:literal)*) => {
        impl KeyspaceEvents {
            $($(#[$doc])* pub(crate) const $name: KeyspaceEvents = KeyspaceEvents(1 << $bit);)*
            /// Classes and their letters.
            const LETTERS: &'static [(char, KeyspaceEvents)] = &[$(($letter, KeyspaceEvents::$name)),*];
        }
    };
}

classes! {
    /// Commands of any type: DEL, EXPIRE, RENAME ...
    GENERIC 'g' 2
    /// Commands of strings.
    STRING '$' 3
    LIST 'l' 4
    SET 's' 5
    HASH 'h' 6
    SORTED_SET 'z' 7
    /// A key has expired.
    EXPIRED 'x' 8
    /// A key was evicted.
    EVICTED 'e' 9
    STREAM 't' 10
    MODULE 'd' 13
    /// A key was created.
    NEW 'n' 14
    /// To the channel of the key, `__keyspace@<db>__:<key>`.
    KEYSPACE 'K' 0
    /// To the channel of the event, `__keyevent@<db>__:<event>`.
    KEYEVENT 'E' 1
    /// A command has read a key that does not exist.
    MISS 'm' 11
}

impl KeyspaceEvents {
    /// The classes that the letter `A` selects.
    const ALL: KeyspaceEvents = KeyspaceEvents(0b10_0111_1111_1100);
    /// Letters in the order of Redis's text; those from here on also follow `A`.
    const AFTER_ALL: [char; 3] = ['K', 'E', 'm'];

    /// The set as a number, for an atomic.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn from_bits(bits: u32) -> KeyspaceEvents {
        KeyspaceEvents(bits)
    }

    /// Whether any class of `other` is in the set.
    #[inline]
    pub(crate) fn has(self, other: KeyspaceEvents) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether some channel receives events of `class`.
    #[inline]
    pub(crate) fn tells(self, class: KeyspaceEvents) -> bool {
        self.has(class)
            && self.has(KeyspaceEvents(
                KeyspaceEvents::KEYSPACE.0 | KeyspaceEvents::KEYEVENT.0,
            ))
    }
}

/// A letter that is no class of events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct UnknownEventClass;

impl std::error::Error for UnknownEventClass {}

impl fmt::Display for UnknownEventClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
    }
}

impl FromStr for KeyspaceEvents {
    type Err = UnknownEventClass;

    fn from_str(text: &str) -> Result<KeyspaceEvents, UnknownEventClass> {
        let mut events = KeyspaceEvents::default();
        for letter in text.chars() {
            let mut classes = KeyspaceEvents::LETTERS.iter();
            let class = match letter {
                'A' => Some(KeyspaceEvents::ALL),
                _ => classes.find(|(l, _)| *l == letter).map(|(_, class)| *class),
            };
            events.0 |= class.ok_or(UnknownEventClass)?.0;
        }
        Ok(events)
    }
}

/// The text that CONFIG GET returns. As in Redis, the letter `n` is not in it after `A`.
impl fmt::Display for KeyspaceEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_all = self.0 & KeyspaceEvents::ALL.0 == KeyspaceEvents::ALL.0;
        if has_all {
            f.write_str("A")?;
        }
        for (letter, class) in KeyspaceEvents::LETTERS {
            let follows = KeyspaceEvents::AFTER_ALL.contains(letter);
            if self.has(*class) && (follows || !has_all) {
                write!(f, "{letter}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_normalised_as_in_redis() {
        for (text, normal) in [
            ("", ""),
            ("A", "A"),
            ("AKE", "AKE"),
            ("KEg$", "g$KE"),
            ("AKEmn", "AKEm"),
            ("mK", "Km"),
            ("g$lshzxetd", "A"),
            ("g$lshzxe", "g$lshzxe"),
            ("dtg", "gtd"),
            ("nE", "nE"),
        ] {
            let events: KeyspaceEvents = text.parse().unwrap();
            assert_eq!(events.to_string(), normal, "{text}");
        }
        assert_eq!("q".parse::<KeyspaceEvents>(), Err(UnknownEventClass));
    }
}
