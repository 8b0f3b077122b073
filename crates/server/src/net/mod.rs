//! Sockets and threads: from bytes that arrive to replies that are sent. The only folder that uses sockets and tickets.
//!
//! ```text
//!   listener ──▶ worker ──▶ connection_table ──▶ connection ──▶ output, unix_socket
//!      │           │
//!      └──────▶ long_requests ──▶ executor ──▶ worker_pool ──▶ long_queue ──▶ connection
//! ```
//!
//! * `listener`: binds, accepts, starts the threads. `unix_socket`: the Unix socket.
//! * `assignment`: from an accepted connection to its worker. `tls_handshakes`: the thread of TLS handshakes, which come before.
//!   `handshake_queue`: the sockets that wait for it. `tls_stream`: an encrypted connection.
//! * `worker`: the event loop. `connection_table`: its connections, and which to visit.
//! * `connection`: one connection. `output`: its replies, and which of them are held.
//! * `executor`: executes requests on a thread; here a protocol is connected to its pipeline.
//! * `worker_pool`: the workers as other threads see them. A message to a worker (`WorkerMsg`) belongs there.
//! * `delivery`: messages to the connections of a worker. `expiry_events`: the thread that publishes expiries.
//! * `saves`: the thread that writes backups, and the threads that send copies.
//! * `long_requests`: the thread that executes long requests. `long_queue`: the connections that wait for it.

mod assignment;
mod connection;
mod connection_table;
mod delivery;
mod executor;
mod expiry_events;
mod handshake_queue;
pub(crate) mod listener;
mod long_queue;
mod long_requests;
mod output;
mod saves;
mod tls_handshakes;
mod tls_stream;
mod unix_socket;
mod worker;
mod worker_pool;
