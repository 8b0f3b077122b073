//! Finds imports inside a crate that form a circle.
//!
//! ```text
//!   file a ── use crate::b::X ──▶ file b ── use crate::c::Y ──▶ file c
//!      ▲                                                         │ use crate::a::Z
//!      └─────────────────────────────────────────────────────────┘ a circle
//! ```
//!
//! Imports between a parent module and its children do not count: a parent declares its children, and they use its
//! shared items.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::{Finding, Source};
use crate::run::root;

/// Files by module path: `a::b` is `a/b.rs` or `a/b/mod.rs`.
type Modules<'a> = BTreeMap<String, &'a Source>;
/// The modules that each module imports from.
type ModuleGraph = BTreeMap<String, BTreeSet<String>>;

/// Finds the circles of each crate, except for those that `xtask/tidy.toml` lists.
///
/// # Errors
/// A source file or the list does not parse.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>, String> {
    let mut known = known()?;
    let mut crates: BTreeMap<&str, Modules<'_>> = BTreeMap::new();
    for source in sources {
        if let Some(path) = source.in_src() {
            let modules = crates.entry(source.krate()).or_default();
            modules.insert(module_of(path), source);
        }
    }
    let mut findings = Vec::new();
    for (krate, modules) in crates {
        for circle in circles(&graph(&modules)?) {
            let name = format!("{krate}: {}", circle.join(", "));
            if !known.remove(&name) {
                findings.push(Finding {
                    file: modules[&circle[0]].file.clone(),
                    line: 1,
                    rule: "import circle",
                    what: name,
                });
            }
        }
    }
    findings.extend(known.into_iter().map(|name| Finding {
        file: "xtask/tidy.toml".into(),
        line: 1,
        rule: "import circle",
        what: format!("this circle is gone; remove it from the list: {name}"),
    }));
    Ok(findings)
}

/// Returns the known circles of `xtask/tidy.toml`: the crate, and the modules in alphabetical order.
fn known() -> Result<BTreeSet<String>, String> {
    let path = root().join("xtask/tidy.toml");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let table: toml::Table = text
        .parse()
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let circles = table.get("circle").and_then(toml::Value::as_array);
    let entry = |circle: &toml::Value| {
        let text = |name| {
            circle
                .get(name)
                .and_then(toml::Value::as_str)
                .unwrap_or_default()
        };
        format!("{}: {}", text("crate"), text("modules"))
    };
    Ok(circles.into_iter().flatten().map(entry).collect())
}

/// Returns the module path of a file below `src`; empty for the crate's root.
fn module_of(path: &str) -> String {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    match path {
        "lib" | "main" | "mod" => String::new(),
        path => path.replace('/', "::"),
    }
}

fn graph(modules: &Modules<'_>) -> Result<ModuleGraph, String> {
    let mut graph = ModuleGraph::new();
    for (module, source) in modules {
        let parsed = syn::parse_file(&source.text).map_err(|e| format!("{}: {e}", source.file))?;
        let mut imports = BTreeSet::new();
        for item in &parsed.items {
            if let syn::Item::Use(item) = item {
                paths(&item.tree, String::new(), &mut imports);
            }
        }
        let imports = imports
            .iter()
            .filter_map(|path| target(path, module, modules));
        let imports = imports.filter(|other| !are_related(module, other));
        graph.insert(module.clone(), imports.collect());
    }
    Ok(graph)
}

/// Adds all paths of a `use` item, with groups expanded.
fn paths(tree: &syn::UseTree, before: String, found: &mut BTreeSet<String>) {
    match tree {
        syn::UseTree::Path(path) => {
            paths(&path.tree, before + &path.ident.to_string() + "::", found)
        }
        syn::UseTree::Group(group) => {
            for tree in &group.items {
                paths(tree, before.clone(), found);
            }
        }
        syn::UseTree::Name(name) => drop(found.insert(before + &name.ident.to_string())),
        syn::UseTree::Rename(rename) => drop(found.insert(before + &rename.ident.to_string())),
        syn::UseTree::Glob(_) => drop(found.insert(before)),
    }
}

/// Returns the module of this crate that a path refers to: its longest prefix that is a file.
fn target(path: &str, module: &str, modules: &Modules<'_>) -> Option<String> {
    let mut base: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    match parts.peek() {
        Some(&"crate") => {
            base.clear();
            parts.next();
        }
        Some(&"self") => drop(parts.next()),
        Some(&"super") => {
            while parts.next_if_eq(&"super").is_some() {
                base.pop();
            }
        }
        _ => return None,
    }
    let mut all: Vec<&str> = base.into_iter().chain(parts).collect();
    while !all.is_empty() && !modules.contains_key(&all.join("::")) {
        all.pop();
    }
    Some(all.join("::")).filter(|found| found != module)
}

/// Returns whether one module is an ancestor of the other.
fn are_related(a: &str, b: &str) -> bool {
    let holds = |outer: &str, inner: &str| {
        outer.is_empty()
            || inner
                .strip_prefix(outer)
                .is_some_and(|rest| rest.starts_with("::"))
    };
    holds(a, b) || holds(b, a)
}

/// Returns the circles: sets of modules that all reach each other.
fn circles(graph: &ModuleGraph) -> Vec<Vec<String>> {
    let reached: BTreeMap<&String, BTreeSet<&String>> = graph
        .keys()
        .map(|module| (module, reached_from(graph, module)))
        .collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, reaches) in &reached {
        if reaches.contains(module) {
            let mutual = reaches
                .iter()
                .filter(|other| reached[*other].contains(module));
            circles.insert(mutual.map(|other| (*other).clone()).collect());
        }
    }
    circles.into_iter().collect()
}

fn reached_from<'a>(graph: &'a ModuleGraph, module: &String) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph[module].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(graph.get(module).into_iter().flatten());
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::{Modules, circles, graph, module_of};
    use crate::tidy::Source;

    #[test]
    fn a_circle_is_found_and_imports_between_parent_and_child_are_ignored() {
        let source = |path: &str, text: &str| Source {
            file: format!("crates/kv/src/{path}"),
            text: text.into(),
        };
        let sources = [
            source("lib.rs", "mod a; mod b; mod c; use a::A;"),
            source("a.rs", "use crate::b::{B, more::M};"),
            source("b.rs", "use super::c::*; mod inner;"),
            source("b/inner.rs", "use super::B; use crate::c;"),
            source("c.rs", "use crate::a::A;"),
            source("d.rs", "use crate::a::A; use std::fmt;"),
        ];
        let modules: Modules<'_> = sources
            .iter()
            .map(|source| (module_of(source.in_src().unwrap()), source))
            .collect();
        assert_eq!(circles(&graph(&modules).unwrap()), [["a", "b", "c"]]);
    }
}
