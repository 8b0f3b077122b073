//! Workloads, drivers and the measurements Farbank states.
