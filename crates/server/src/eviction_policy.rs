//! Policies of eviction (`maxmemory-policy`).

/// Order in which a policy evicts keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EvictionOrder {
    /// The keys that were not used for the longest time first.
    LeastRecent,
    /// The keys that are used least often first.
    LeastFrequent,
    Random,
    /// The keys that expire first.
    EarliestExpiry,
}

/// A policy of eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct EvictionPolicy {
    /// Only keys that expire are evicted.
    pub(crate) is_volatile: bool,
    /// `None`: no keys are evicted.
    pub(crate) order: Option<EvictionOrder>,
}

/// Names of the policies, in Redis's order.
pub(crate) const POLICIES: &[&str] = &[
    "volatile-lru",
    "volatile-lfu",
    "volatile-random",
    "volatile-ttl",
    "allkeys-lru",
    "allkeys-lfu",
    "allkeys-random",
    "noeviction",
];
/// Number of `noeviction` among [`POLICIES`].
pub(crate) const NOEVICTION: u64 = 7;

impl EvictionPolicy {
    /// Returns the policy with this number among [`POLICIES`].
    pub(crate) fn numbered(number: u64) -> EvictionPolicy {
        let (is_volatile, order) = match number {
            0 => (true, Some(EvictionOrder::LeastRecent)),
            1 => (true, Some(EvictionOrder::LeastFrequent)),
            2 => (true, Some(EvictionOrder::Random)),
            3 => (true, Some(EvictionOrder::EarliestExpiry)),
            4 => (false, Some(EvictionOrder::LeastRecent)),
            5 => (false, Some(EvictionOrder::LeastFrequent)),
            6 => (false, Some(EvictionOrder::Random)),
            _ => (false, None),
        };
        EvictionPolicy { is_volatile, order }
    }

    /// Whether the order depends on the uses of keys, which are then recorded.
    #[inline]
    pub(crate) fn depends_on_use(self) -> bool {
        matches!(
            self.order,
            Some(EvictionOrder::LeastRecent | EvictionOrder::LeastFrequent)
        )
    }

    /// Whether the order is that of frequencies.
    pub(crate) fn is_by_frequency(self) -> bool {
        self.order == Some(EvictionOrder::LeastFrequent)
    }
}
