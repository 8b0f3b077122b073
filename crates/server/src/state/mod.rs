//! State that all threads of a server share. It knows neither protocols nor sockets that are polled.
//!
//! * `shared`: the store, the settings and the counters.
//! * `clients`: the registry of connections.
//! * `scripts`: loaded scripts, and the running one.
//! * `subscriptions`: the registry of subscriptions. `messages`: published messages.
//! * `tracking`: client-side caching. `change_log`: changes that are not announced yet. `recording_session`: a session that
//!   records its changes.
//! * `expiries`: keys that expire soon, for keyspace notifications.
//! * `evictor`: selects and deletes keys above `maxmemory`. `access_table`: the last uses of keys. `touching_session`: a
//!   session that records uses.
//! * `pause`: the pause of clients.
//! * `users`: users and their permissions. `acl_log`: refused requests.
//! * `tls`: the certificate of TLS connections.
//! * `durable_file`: replaces a file durably.
//! * `saves`: the backups that are written. `save_file`: writes one.
//! * `threads`: what commands may ask of the threads.
//!
//! State that only one protocol uses is with its commands, for example in `commands::memcached::state`.

pub(crate) mod access_table;
pub(crate) mod acl_log;
pub(crate) mod change_log;
pub(crate) mod clients;
pub(crate) mod durable_file;
pub(crate) mod evictor;
pub(crate) mod expiries;
pub(crate) mod functions;
pub(crate) mod messages;
pub(crate) mod pause;
pub(crate) mod recording_session;
pub(crate) mod save_file;
pub(crate) mod saves;
pub(crate) mod scripts;
pub(crate) mod shared;
pub(crate) mod subscriptions;
pub(crate) mod threads;
pub(crate) mod tls;
pub(crate) mod touching_session;
pub(crate) mod tracking;
pub(crate) mod users;
