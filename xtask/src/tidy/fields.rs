//! Finds structs with many fields, which own too much to have a narrow interface.

use syn::visit::{self, Visit};

use super::{Finding, Source};

/// Most fields of a struct that is not plain data.
const FIELDS_MAX: usize = 12;
/// Derived traits of plain data: values that are copied, and arguments of a command line.
const DATA_TRAITS: [&str; 4] = ["Clone", "Copy", "Args", "Parser"];
/// Plain data that derives none of them: rows of a table, parsed requests, settings and figures that threads share.
const OTHER_DATA: [&str; 5] = [
    "ClientInfo",
    "Command",
    "LiveSettings",
    "MetaRequest",
    "SegmentInfo",
];

/// Checks that no struct has more than [`FIELDS_MAX`] fields, unless it is plain data.
///
/// # Errors
/// A source file does not parse.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.in_src().is_some()) {
        let parsed = syn::parse_file(&source.text).map_err(|e| format!("{}: {e}", source.file))?;
        let mut large = LargeStructs(Vec::new());
        large.visit_file(&parsed);
        findings.extend(large.0.into_iter().map(|(name, line, fields)| Finding {
            file: source.file.clone(),
            line,
            rule: "fields",
            what: format!(
                "{name} has {fields} fields, more than {FIELDS_MAX}: group them by what they serve"
            ),
        }));
    }
    Ok(findings)
}

/// Names, lines and numbers of fields.
struct LargeStructs(Vec<(String, usize, usize)>);

impl<'ast> Visit<'ast> for LargeStructs {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let name = item.ident.to_string();
        let fields = item.fields.len();
        if fields > FIELDS_MAX && !is_data(&item.attrs) && !OTHER_DATA.contains(&&*name) {
            self.0.push((name, item.ident.span().start().line, fields));
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }
}

/// Whether a struct with these attributes is plain data, or has the layout of a foreign one.
fn is_data(attributes: &[syn::Attribute]) -> bool {
    let mut found = false;
    for attribute in attributes {
        // An attribute of another form names no trait.
        let _ = attribute.parse_nested_meta(|meta| {
            let names = |name: &&str| meta.path.segments.last().is_some_and(|s| s.ident == name);
            found |= attribute.path().is_ident("derive") && DATA_TRAITS.iter().any(names);
            found |= attribute.path().is_ident("repr") && names(&"C");
            Ok(())
        });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Source;

    #[test]
    fn a_struct_with_many_fields_is_found_unless_it_is_plain_data() {
        let fields = |count: usize| (0..count).map(|n| format!("f{n}: u8,")).collect::<String>();
        let text = format!(
            "struct Small {{ {} }}\nstruct Large {{ {many} }}\n#[derive(Debug, Clone)]\nstruct Data {{ {many} }}\n\
             #[repr(C)]\nstruct Foreign {{ {many} }}\n#[derive(clap::Args)]\nstruct Arguments {{ {many} }}\n\
             mod tests {{ struct Case {{ {many} }} }}\n#[derive(Debug)]\nstruct Shown {{ {many} }}\n",
            fields(12),
            many = fields(13)
        );
        let source = |file: &str| Source {
            file: file.into(),
            text: text.clone(),
        };
        let found = check(&[source("crates/kv/src/a.rs"), source("crates/kv/tests/a.rs")]).unwrap();
        let found: Vec<_> = found.iter().map(|finding| finding.line).collect();
        assert_eq!(found, [2, 11]);
    }
}
