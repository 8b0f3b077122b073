//! [`ChunkPool`]: the memory of one memory server that a compute server has taken and not used.

/// Parts of chunks. A part is `start..end`.
#[derive(Default)]
pub(crate) struct ChunkPool {
    current: Option<(u64, u64)>,
    /// Other parts, if they are kept.
    rest: Vec<(u64, u64)>,
    /// Whether a part that is replaced is kept.
    keeps_rest: bool,
}

impl ChunkPool {
    /// Creates an empty pool. Unless it `keeps_rest`, another chunk replaces the current one.
    pub(crate) fn new(keeps_rest: bool) -> ChunkPool {
        ChunkPool {
            keeps_rest,
            ..ChunkPool::default()
        }
    }

    /// Takes `bytes`. Returns their start, or `None` if no part has as many.
    pub(crate) fn take(&mut self, bytes: u64) -> Option<u64> {
        let fits = |part: &(u64, u64)| part.0 + bytes <= part.1;
        if !self.current.as_ref().is_some_and(fits) {
            let place = self.rest.iter().position(fits)?;
            let fitting = self.rest.swap_remove(place);
            self.rest.extend(self.current.replace(fitting));
        }
        let (at, end) = self.current?;
        self.current = Some((at + bytes, end));
        Some(at)
    }

    /// Adds the part `start..end`.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        let replaced = self.current.replace((start, end));
        if self.keeps_rest {
            self.rest.extend(replaced.filter(|(at, end)| at < end));
        }
    }

    /// Removes all parts.
    pub(crate) fn take_all(&mut self) -> Vec<(u64, u64)> {
        let mut all = std::mem::take(&mut self.rest);
        all.extend(self.current.take());
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_part_is_used_when_it_fits_and_another_is_replaced() {
        let mut kept = ChunkPool::new(true);
        kept.add(0, 100);
        assert_eq!(kept.take(60), Some(0));
        kept.add(200, 300);
        assert_eq!(kept.take(90), Some(200));
        assert_eq!(kept.take(40), Some(60));
        assert_eq!(kept.take(20), None);
        assert_eq!(kept.take(10), Some(290));
        let mut replaced = ChunkPool::new(false);
        replaced.add(0, 100);
        replaced.add(200, 210);
        assert_eq!(replaced.take(20), None);
        assert_eq!(replaced.take_all(), [(200, 210)]);
        assert_eq!(replaced.take(1), None);
    }
}
