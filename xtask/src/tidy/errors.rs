//! Finds functions of a library whose error is a text.

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::{Finding, Source};

/// Crates that are programs: their errors are messages for the terminal.
const PROGRAMS: [&str; 2] = ["crates/cli", "crates/peers"];

/// Checks that no library has a `Result<_, String>`, or a trait's error type `String`.
///
/// # Errors
/// A source file does not parse.
pub(super) fn check(sources: &[Source]) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let is_library = |source: &&Source| {
        let krate = source.krate();
        source.in_src().is_some() && krate.starts_with("crates/") && !PROGRAMS.contains(&krate)
    };
    for source in sources.iter().filter(is_library) {
        let parsed = syn::parse_file(&source.text).map_err(|e| format!("{}: {e}", source.file))?;
        let mut lines = TextErrors(Vec::new());
        lines.visit_file(&parsed);
        findings.extend(lines.0.into_iter().map(|line| Finding {
            file: source.file.clone(),
            line,
            rule: "error type",
            what: "a String is not an error type".into(),
        }));
    }
    Ok(findings)
}

/// Lines with an error that is a text.
struct TextErrors(Vec<usize>);

impl<'ast> Visit<'ast> for TextErrors {
    fn visit_path_segment(&mut self, segment: &'ast syn::PathSegment) {
        if segment.ident == "Result"
            && let syn::PathArguments::AngleBracketed(arguments) = &segment.arguments
            && arguments.args.len() == 2
            && matches!(&arguments.args[1], syn::GenericArgument::Type(error) if is_text(error))
        {
            self.0.push(segment.span().start().line);
        }
        visit::visit_path_segment(self, segment);
    }

    fn visit_impl_item_type(&mut self, item: &'ast syn::ImplItemType) {
        if (item.ident == "Err" || item.ident == "Error") && is_text(&item.ty) {
            self.0.push(item.span().start().line);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if module.ident != "tests" {
            visit::visit_item_mod(self, module);
        }
    }
}

fn is_text(error: &syn::Type) -> bool {
    matches!(error, syn::Type::Path(path) if path.path.is_ident("String"))
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::tidy::Source;

    #[test]
    fn a_text_as_an_error_is_found_in_a_library_and_not_in_a_program() {
        let text = "fn a() -> Result<Vec<u8>, String> { b() }\nfn c() -> Result<String, Fault> { d() }\n\
                    impl FromStr for E { type Err = String; }\nmod tests { fn f() -> Result<(), String> {} }\n";
        let source = |file: &str| Source {
            file: file.into(),
            text: text.into(),
        };
        let sources = [
            source("crates/kv/src/a.rs"),
            source("crates/kv/tests/a.rs"),
            source("crates/cli/src/a.rs"),
        ];
        let found: Vec<String> = check(&sources)
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        let expected = [
            "crates/kv/src/a.rs:1: error type: a String is not an error type",
            "crates/kv/src/a.rs:3: error type: a String is not an error type",
        ];
        assert_eq!(found, expected);
    }
}
