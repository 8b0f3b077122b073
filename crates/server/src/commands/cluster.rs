//! CLUSTER, READONLY, READWRITE and ASKING: as in Redis without a cluster, they are refused.

use super::context::CommandContext;
use super::error::CommandError;
use crate::protocol::resp::Args;

/// A command for clusters. Clients that support clusters recognize the error, and then send all keys to this server.
pub(super) fn refuse(_: &mut CommandContext<'_>, _: Args<'_>) -> Result<(), CommandError> {
    Err(CommandError::Fixed(
        "ERR This instance has cluster support disabled",
    ))
}
