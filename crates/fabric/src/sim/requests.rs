//! The requests of compute servers that are under way: batches of verbs, and calls to service threads.

use crate::fabric::{FabricError, Verb};
use crate::service::{ServiceRequest, ServiceResponse};

/// A batch that was posted and whose result was not taken yet.
pub(super) struct PostedBatch {
    pub(super) compute: u16,
    pub(super) epoch: u8,
    pub(super) server: u16,
    pub(super) line: usize,
    pub(super) task: usize,
    pub(super) verbs: Vec<Verb>,
    /// Time at which each verb leaves the client's NIC.
    pub(super) departs: Vec<u64>,
    /// Time of the last effect of the verbs that have acted.
    pub(super) acted: u64,
    /// Number of verbs that have not acted.
    pub(super) left: u32,
    pub(super) error: Option<FabricError>,
    pub(super) finished: bool,
    pub(super) abandoned: bool,
}

/// A call of a compute server to a service thread.
pub(super) struct LeaseCall {
    pub(super) compute: u16,
    pub(super) epoch: u8,
    pub(super) server: u16,
    pub(super) task: usize,
    pub(super) ask: ServiceRequest,
    pub(super) answer: Option<Result<ServiceResponse, FabricError>>,
    pub(super) finished: bool,
    pub(super) abandoned: bool,
}
