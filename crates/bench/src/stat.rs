//! Parser for the kernel's accounting of a process or a thread: `/proc/.../stat`.

/// Returns the minor page faults, which need no I/O: mostly the first use of a page.
pub(crate) fn faults(stat: &str) -> Option<u64> {
    field(stat, 10)
}

/// Returns user and system time in ticks.
pub(crate) fn ticks(stat: &str) -> Option<u64> {
    Some(field(stat, 14)? + field(stat, 15)?)
}

/// Returns the field with this number in proc(5). Only fields after the name are supported.
fn field(stat: &str, number: usize) -> Option<u64> {
    // Field 2, the name, is in parentheses and may contain any character.
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_whitespace()
        .nth(number.checked_sub(3)?)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_after_any_process_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 3 0 123 45 0 0 20 0 3 0 100 0";
        assert_eq!(ticks(stat), Some(168));
        assert_eq!(faults(stat), Some(100));
        assert_eq!(ticks("42 (a) S 1"), None);
        assert_eq!(faults(""), None);
    }
}
