//! What the kernel says of the processors: `/proc/cpuinfo`.

/// What the lines of this name say, one for each processor.
pub fn values<'a>(cpuinfo: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    cpuinfo.lines().filter_map(move |line| {
        let (key, value) = line.split_once(':')?;
        (key.trim_end() == name).then(|| value.trim())
    })
}
