//! What commands may ask of the threads that serve connections.

use super::clients::ClientInfo;
use super::expiries::Expiries;
use super::saves::SaveQueue;

/// The threads of a running server.
pub(crate) trait ServerThreads: Sync {
    /// Signals all threads to end, and wakes them.
    fn stop(&self);

    /// Whether the server is stopping. A request that takes long ends with an error if it is.
    fn is_stopping(&self) -> bool;

    /// Keys that expire soon, which the thread of expiries publishes.
    fn expiries(&self) -> &Expiries;

    /// The jobs of the thread of backups.
    fn saves(&self) -> &SaveQueue;

    /// Wakes all workers, for example because a pause has ended.
    fn wake(&self);

    /// Makes every worker close the connections that a change of users concerns.
    fn users_changed(&self);

    /// Sends the worker of a connection a message to close it.
    fn close(&self, client_info: &ClientInfo);
}
