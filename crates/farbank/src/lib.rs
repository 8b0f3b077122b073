//! The facade.

