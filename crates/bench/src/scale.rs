//! Size of the data compared with the modelled cache. A run whose data fit into the cache does not measure far memory.

/// Smallest ratio of data bytes to cache bytes for which figures count as far memory's. At this ratio about one access
/// in eight finds its line in the cache.
const CACHES_MIN: f64 = 8.0;

/// Size of a run's data and of the modelled cache.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DataScale {
    /// Bytes of data that operations access.
    pub(crate) data_bytes: u64,
    /// Size of the modelled cache in bytes.
    pub(crate) cache_bytes: u64,
}

impl DataScale {
    /// Returns the ratio of data bytes to cache bytes.
    pub(crate) fn caches(self) -> f64 {
        self.data_bytes as f64 / self.cache_bytes.max(1) as f64
    }

    /// Formats both sizes for a note.
    pub(crate) fn text(self) -> String {
        let (data, cache) = (human(self.data_bytes), human(self.cache_bytes));
        let caches = self.caches();
        format!("{data} of data, {caches:.1} times the modelled cache of {cache}")
    }

    /// Returns the reason why figures do not measure far memory, if there is one.
    pub(crate) fn caveat(self) -> Option<String> {
        (self.caches() < CACHES_MIN).then(|| {
            let text = self.text();
            format!("NOT OF FAR MEMORY: {text}; the data must be at least {CACHES_MIN:.0} times the cache")
        })
    }

    /// Returns a note for runs that may also measure a cache: both sizes, and a remark if the data are small.
    pub(crate) fn note(self) -> String {
        match self.caches() < CACHES_MIN {
            true => {
                let text = self.text();
                format!(
                    "{text}: below {CACHES_MIN:.0} times, rates are in part the cache's, and not far memory's"
                )
            }
            false => self.text(),
        }
    }
}

fn human(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_smaller_than_eight_caches_do_not_count_as_far_memory() {
        let scale = |data_bytes| DataScale {
            data_bytes,
            cache_bytes: 22 << 20,
        };
        // 200,000 keys.
        let caveat = scale(6 << 20)
            .caveat()
            .expect("data that fit the cache need a caveat");
        let begin = "NOT OF FAR MEMORY: 6144 KiB of data, 0.3 times";
        assert!(caveat.starts_with(begin), "{caveat}");
        assert!(scale(175 << 20).caveat().is_some());
        assert!(scale(175 << 20).note().contains("in part the cache's"));
        assert_eq!(scale(176 << 20).caveat(), None);
        assert_eq!(scale(176 << 20).note(), scale(176 << 20).text());
    }
}
