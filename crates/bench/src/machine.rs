//! What the kernel says of the machine, in lines of a name and a value: `/proc/cpuinfo`, `/proc/meminfo`.

/// What the lines of this name say: of `/proc/cpuinfo` one for each processor.
pub fn values<'a>(info: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    info.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == name).then(|| value.trim())
    })
}

/// Bytes that could be used before others lose what they have. None if the kernel does not say.
pub(crate) fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = values(&info, "MemAvailable").next()?.strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_machine_that_runs_this_has_a_page_to_spare() {
        assert!(super::available_bytes().is_none_or(|bytes| bytes > 4 << 10));
    }

    #[test]
    fn values_are_found_by_their_whole_name() {
        let info = "Mem:\t 1 kB\nMemFree:  2 kB\nno value\nMemFree : 3 kB\n";
        let values: Vec<_> = super::values(info, "MemFree").collect();
        assert_eq!(values, ["2 kB", "3 kB"]);
    }
}
