//! Parser for the kernel's "name: value" files: `/proc/cpuinfo` and `/proc/meminfo`.

/// Returns the values of all lines with this name. `/proc/cpuinfo` has one for each processor.
pub fn values<'a>(info: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    info.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == name).then(|| value.trim())
    })
}

/// Returns the bytes of memory available without swapping (`MemAvailable`), or `None` if the kernel does not report
/// it.
pub(crate) fn available_bytes() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = values(&info, "MemAvailable").next()?.strip_suffix(" kB")?;
    Some(kib.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    #[test]
    fn available_memory_is_more_than_a_page() {
        assert!(super::available_bytes().is_none_or(|bytes| bytes > 4 << 10));
    }

    #[test]
    fn values_are_found_by_their_full_name() {
        let info = "Mem:\t 1 kB\nMemFree:  2 kB\nno value\nMemFree : 3 kB\n";
        let values: Vec<_> = super::values(info, "MemFree").collect();
        assert_eq!(values, ["2 kB", "3 kB"]);
    }
}
