//! Finds names that occur twice in a crate.

use std::collections::BTreeMap;

use super::{Finding, Source};

/// Files that replace another file in some builds and therefore define the same types.
const STAND_INS: [&str; 1] = ["crates/pm/src/grow_table/chunk_checked.rs"];

/// Checks that type names and invariant numbers are unique in each crate.
///
/// # Errors
/// A source file does not parse.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>, String> {
    let mut types = BTreeMap::new();
    let mut invariants = BTreeMap::new();
    let is_checked =
        |source: &&Source| source.in_src().is_some() && !STAND_INS.contains(&&*source.file);
    for source in sources.iter().filter(is_checked) {
        let parsed = syn::parse_file(&source.text).map_err(|e| format!("{}: {e}", source.file))?;
        for (name, line) in type_names(&parsed.items) {
            note(&mut types, source, &name, line);
        }
        for (number, line) in source.text.lines().enumerate() {
            if let Some(name) = invariant(line) {
                note(&mut invariants, source, name, number + 1);
            }
        }
    }
    let mut findings = twice(types, "type name");
    findings.extend(twice(invariants, "invariant"));
    Ok(findings)
}

/// Files and lines, by crate and name.
type Places = BTreeMap<(String, String), Vec<(String, usize)>>;

fn note(places: &mut Places, source: &Source, name: &str, line: usize) {
    let key = (source.krate().to_owned(), name.to_owned());
    places
        .entry(key)
        .or_default()
        .push((source.file.clone(), line));
}

fn twice(places: Places, rule: &'static str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for ((krate, name), mut uses) in places {
        let (first, at) = uses.remove(0);
        findings.extend(uses.into_iter().map(|(file, line)| Finding {
            file,
            line,
            rule,
            what: format!("{krate} has {name} at {first}:{at}, too"),
        }));
    }
    findings
}

/// Returns the types that a file defines, with their lines. Types of a test module or of an alternative build are left
/// out, because they may repeat a name.
fn type_names(items: &[syn::Item]) -> Vec<(String, usize)> {
    let mut names = Vec::new();
    for item in items {
        let (attributes, ident) = match item {
            syn::Item::Struct(item) => (&item.attrs, &item.ident),
            syn::Item::Enum(item) => (&item.attrs, &item.ident),
            syn::Item::Trait(item) => (&item.attrs, &item.ident),
            syn::Item::Union(item) => (&item.attrs, &item.ident),
            syn::Item::Type(item) => (&item.attrs, &item.ident),
            syn::Item::Mod(module) => {
                let inside = module.content.as_ref().map(|(_, items)| items.as_slice());
                if !has_cfg(&module.attrs) {
                    names.extend(type_names(inside.unwrap_or_default()));
                }
                continue;
            }
            _ => continue,
        };
        if !has_cfg(attributes) {
            names.push((ident.to_string(), ident.span().start().line));
        }
    }
    names
}

fn has_cfg(attributes: &[syn::Attribute]) -> bool {
    attributes
        .iter()
        .any(|attribute| attribute.path().is_ident("cfg"))
}

/// Returns the number of the invariant that a line of module documentation defines: `//! KV-MAP-4  A map is ...`.
fn invariant(line: &str) -> Option<&str> {
    let text = line.strip_prefix("//! ")?;
    let (name, rest) = text.trim_start().split_once(' ')?;
    let (prefix, number) = name.rsplit_once('-')?;
    let is_prefix = prefix.split('-').all(|part| {
        part.starts_with(|c: char| c.is_ascii_uppercase())
            && part
                .bytes()
                .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
    });
    let defines = rest.starts_with(' ') || rest.starts_with(char::is_uppercase);
    (is_prefix && !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && defines)
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Source;

    #[test]
    fn a_name_that_occurs_twice_in_a_crate_is_found_and_one_in_two_crates_is_not() {
        let source = |file: &str, text: &str| Source {
            file: file.into(),
            text: text.into(),
        };
        let sources = [
            source(
                "crates/kv/src/a.rs",
                "//! KV-MAP-1  A map holds.\nstruct Found;\n",
            ),
            source(
                "crates/kv/src/b.rs",
                "//! KV-MAP-1  Another.\nmod m { enum Found {} }\n#[cfg(test)]\nmod tests { struct Found; }\n",
            ),
            source(
                "crates/pm/src/a.rs",
                "//! KV-MAP-1 (kv) is cited here.\nstruct Found;\n",
            ),
        ];
        let found: Vec<String> = check(&sources)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "crates/kv/src/b.rs:2: type name: crates/kv has Found at crates/kv/src/a.rs:2, too",
            "crates/kv/src/b.rs:1: invariant: crates/kv has KV-MAP-1 at crates/kv/src/a.rs:1, too",
        ];
        assert_eq!(found, expected);
    }
}
