//! Bytes of data beside those of the modelled cache: what fits the cache is no measurement of far memory.

/// Data have at least so many times the bytes of the cache, or figures are not of far memory: then about one access in eight finds
/// its line in the cache.
const CACHES_MIN: f64 = 8.0;

/// How much data a run has, and how large the modelled cache is.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DataScale {
    /// Bytes of data that operations reach.
    pub(crate) data_bytes: u64,
    /// Bytes of the modelled cache.
    pub(crate) cache_bytes: u64,
}

impl DataScale {
    /// How many caches the data would fill.
    pub(crate) fn caches(self) -> f64 {
        self.data_bytes as f64 / self.cache_bytes.max(1) as f64
    }

    /// In words, for a note.
    pub(crate) fn text(self) -> String {
        let (data, cache) = (human(self.data_bytes), human(self.cache_bytes));
        let caches = self.caches();
        format!("{data} of data, {caches:.1} times the modelled cache of {cache}")
    }

    /// Why figures are not of far memory, if they are not.
    pub(crate) fn caveat(self) -> Option<String> {
        (self.caches() < CACHES_MIN).then(|| {
            let text = self.text();
            format!("NOT OF FAR MEMORY: {text}, and at least {CACHES_MIN:.0} times is fair")
        })
    }

    /// For runs whose figures are meant to be of a cache, too: how large both are, and that the data are few if they are.
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
    fn data_of_less_than_eight_caches_are_no_measurement_of_memory() {
        let scale = |data_bytes| DataScale {
            data_bytes,
            cache_bytes: 22 << 20,
        };
        // 200,000 keys, the default as it was.
        let caveat = scale(6 << 20).caveat().expect("it fits the cache");
        let begin = "NOT OF FAR MEMORY: 6144 KiB of data, 0.3 times";
        assert!(caveat.starts_with(begin), "{caveat}");
        assert!(scale(175 << 20).caveat().is_some());
        assert!(scale(175 << 20).note().contains("in part the cache's"));
        assert_eq!(scale(176 << 20).caveat(), None);
        assert_eq!(scale(176 << 20).note(), scale(176 << 20).text());
    }
}
