//! The figures as JSON, for the page.

use serde_json::{Map, Value, json};

use super::{figures, unready};
use crate::state::shared::ServerShared;
use crate::stats::hot_keys::HotKey;

/// Returns all figures, and the most requested keys if `shows_keys`.
pub(super) fn json(shared: &ServerShared<'_>, shows_keys: bool) -> String {
    let read = figures::read(shared);
    let (caps, health) = (shared.store.caps(), shared.store.health());
    let figures = read.figures.iter();
    let figures: Map<String, Value> = figures
        .map(|figure| (figure.name.to_owned(), json!(figure.value)))
        .collect();
    let hot_keys = shows_keys.then(|| shared.stats.counters.hot_keys());
    let hot_keys = hot_keys.map(|keys| keys.iter().map(hot_key).collect::<Vec<_>>());
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pool": shared.options.pool,
        "medium": caps.kind.name(),
        "survives": caps.survives,
        "health": health.word(),
        "problem": unready(shared, &health).or_else(|| health.growth_error.as_deref().map(str::to_owned)),
        "figures": figures,
        "keys": read.keys.iter().map(|(db, keys)| json!([db, keys])).collect::<Vec<_>>(),
        "latency_us": read.latency.buckets_us(),
        "hot_keys": hot_keys,
    })
    .to_string()
}

fn hot_key(hot: &HotKey) -> Value {
    let HotKey { db, key, share } = hot;
    json!({ "db": db, "key": key, "share": share })
}
