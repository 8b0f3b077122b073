//! Histories, oracles and crash exploration for structures in far memory.
