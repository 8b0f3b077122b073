//! What the kernel accounts to a process or a thread: `/proc/.../stat`.

/// Page faults that needed no device: a page's first use, mostly.
pub(crate) fn faults(stat: &str) -> Option<u64> {
    field(stat, 10)
}

/// User and system time in ticks.
pub(crate) fn ticks(stat: &str) -> Option<u64> {
    Some(field(stat, 14)? + field(stat, 15)?)
}

/// The field that proc(5) gives this number, one of those behind the name.
fn field(stat: &str, number: usize) -> Option<u64> {
    // The name, field 2, is in brackets and may hold anything.
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
    fn fields_are_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 100 0 3 0 123 45 0 0 20 0 3 0 100 0";
        assert_eq!(ticks(stat), Some(168));
        assert_eq!(faults(stat), Some(100));
        assert_eq!(ticks("42 (a) S 1"), None);
        assert_eq!(faults(""), None);
    }
}
