//! A durable key-value engine in far memory: one log, one cleaner.

pub mod store;
