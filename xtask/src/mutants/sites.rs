//! Finds the places of a source file where a mutant can be made, and the text of each mutant.
//!
//! A mutant is behind a switch: all mutants are compiled together, and a run selects one of them. So a mutant is text
//! inserted around the code that it changes, and never a copy of that code. Therefore places can be nested.
//!
//! ```text
//!   medium.flush(ctx, at, len);      if !on(7) { medium.flush(ctx, at, len); }
//!   if a < b {                       if lt(8, &(a), &(b)) {
//!   first(); second();               for turn in 0..2 { if (turn == 0) != on(9) { first(); } else { second(); } }
//! ```
//!
//! Inserted text contains no line break. So lines keep their numbers, and the line of a compiler error shows which
//! mutants cannot be compiled.

use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{BinOp, Block, Expr, ExprLit, Lit, ReturnType, Stmt, Type};

/// Kind of change that a mutant makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Operator {
    /// Skip a statement.
    Delete,
    /// Skip a statement that flushes, drains or waits.
    DropOrder,
    /// Execute two statements in reverse order.
    Swap,
    /// Replace `<` by `<=`, `>` by `>=`, and vice versa.
    Bound,
    /// Add one to a number.
    PlusOne,
    /// Negate a condition.
    Negate,
    /// Return a constant at the start of a function.
    Constant,
    /// Release a lock before the last statement of its block.
    EarlyUnlock,
    /// End a loop before its first iteration.
    DropLoop,
}

impl Operator {
    pub(super) const ALL: [Operator; 9] = [
        Operator::Delete,
        Operator::DropOrder,
        Operator::Swap,
        Operator::Bound,
        Operator::PlusOne,
        Operator::Negate,
        Operator::Constant,
        Operator::EarlyUnlock,
        Operator::DropLoop,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Operator::Delete => "statement deleted",
            Operator::DropOrder => "flush, drain or wait dropped",
            Operator::Swap => "statements swapped",
            Operator::Bound => "bound moved",
            Operator::PlusOne => "number plus one",
            Operator::Negate => "condition negated",
            Operator::Constant => "constant returned",
            Operator::EarlyUnlock => "lock released early",
            Operator::DropLoop => "loop dropped",
        }
    }
}

/// Names of calls that order writes to far memory or wait for them.
const ORDERING: [&str; 9] = [
    "flush", "drain", "wait", "settle", "persist", "sync", "commit", "fence", "wait_for",
];
/// Placeholder for the mutant's number.
const NUMBER: &str = "{number}";
/// Path of the switch module, which each crate gets.
const SWITCH: &str = "crate::mutant_switch";

/// An edit of a source file.
#[derive(Clone, Debug)]
pub(super) struct SourceEdit {
    /// The bytes that it replaces; empty if it only inserts text.
    pub(super) at: Range<usize>,
    pub(super) text: String,
    /// The bytes of the code that the edit opens or closes. The end is `usize::MAX` if the edit must stand before all
    /// other edits at the same offset.
    of: Range<usize>,
    opens: bool,
}

/// A possible mutant.
#[derive(Clone, Debug)]
pub(super) struct MutationSite {
    pub(super) operator: Operator,
    pub(super) line: usize,
    pub(super) last_line: usize,
    pub(super) function: String,
    /// The source text of the place, on one line.
    pub(super) text: String,
    pub(super) edits: Vec<SourceEdit>,
}

impl MutationSite {
    /// Returns whether this mutant and `other` overlap without one being inside the other. Such mutants cannot be
    /// compiled together.
    pub(super) fn crosses(&self, other: &MutationSite) -> bool {
        let cross = |a: Range<usize>, b: Range<usize>| {
            a.start < b.start && b.start < a.end && a.end < b.end
        };
        self.operator == Operator::Swap
            && other.operator == Operator::Swap
            && (cross(self.swapped(), other.swapped()) || cross(other.swapped(), self.swapped()))
    }

    /// Returns the bytes from the start of the first swapped statement to the end of the second.
    fn swapped(&self) -> Range<usize> {
        self.edits[0].of.clone()
    }
}

/// Returns all possible mutants of `source`.
pub(super) fn sites(source: &str) -> Result<Vec<MutationSite>, String> {
    let file = syn::parse_file(source).map_err(|e| e.to_string())?;
    let mut finder = SiteFinder {
        source,
        function: String::new(),
        sites: Vec::new(),
    };
    finder.visit_file(&file);
    Ok(finder.sites)
}

/// Returns `source` with the edits of all `mutants`, each with its number. No two of them may overlap unless one is
/// inside the other.
pub(super) fn apply<'a>(
    source: &str,
    mutants: impl Iterator<Item = (usize, &'a MutationSite)>,
) -> String {
    let mut edits = Vec::new();
    for (order, (number, site)) in mutants.enumerate() {
        for edit in &site.edits {
            edits.push((order, edit, edit.text.replace(NUMBER, &number.to_string())));
        }
    }
    // At the same offset closing edits come first, inner before outer; then opening edits, outer before inner.
    edits.sort_by_key(|(order, edit, _)| {
        let (outer, order) = match edit.opens {
            true => (usize::MAX - edit.of.end, *order),
            false => (usize::MAX - edit.of.start, usize::MAX - *order),
        };
        (edit.at.start, edit.opens, outer, order)
    });
    let mut mutated = String::with_capacity(source.len() * 2);
    let mut copied = 0;
    for (_, edit, text) in edits {
        mutated.push_str(&source[copied..edit.at.start]);
        mutated.push_str(&text);
        copied = edit.at.end;
    }
    mutated.push_str(&source[copied..]);
    mutated
}

struct SiteFinder<'a> {
    source: &'a str,
    function: String,
    sites: Vec<MutationSite>,
}

impl SiteFinder<'_> {
    fn add(&mut self, operator: Operator, span: Span, edits: Vec<SourceEdit>) {
        let text = &self.source[span.byte_range()];
        let text: Vec<&str> = text.split_whitespace().collect();
        let text: String = text.join(" ").chars().take(90).collect();
        self.sites.push(MutationSite {
            operator,
            line: span.start().line,
            last_line: span.end().line,
            function: self.function.clone(),
            text,
            edits,
        });
    }

    /// Adds a mutant that consists of text before and after `span`.
    fn wrap(&mut self, operator: Operator, span: Span, before: &str, after: &str) {
        let of = span.byte_range();
        let edits = vec![opening(&of, before), closing(&of, after)];
        self.add(operator, span, edits);
    }

    fn negate(&mut self, condition: &Expr) {
        if !has_let(condition) {
            let before = format!("({SWITCH}::on({NUMBER}) != (");
            self.wrap(Operator::Negate, condition.span(), &before, "))");
        }
    }

    fn statements(&mut self, block: &Block) {
        for pair in block.stmts.windows(2) {
            if let (Some(_), Some(_)) = (ordered_call(&pair[0]), ordered_call(&pair[1])) {
                let of = pair[0].span().byte_range().start..pair[1].span().byte_range().end;
                let first = pair[0].span().byte_range();
                let before =
                    format!("for turn in 0..2 {{ if (turn == 0) != {SWITCH}::on({NUMBER}) {{ ");
                let edits = vec![
                    opening(&of, &before),
                    closing(&first, " } else {"),
                    closing(&of, " } }"),
                ];
                self.add(Operator::Swap, pair[0].span(), edits);
            }
        }
        for (index, stmt) in block.stmts.iter().enumerate() {
            if let Some(call) = ordered_call(stmt) {
                let operator = match ORDERING.contains(&call.as_str()) {
                    true => Operator::DropOrder,
                    false => Operator::Delete,
                };
                let before = format!("if !{SWITCH}::on({NUMBER}) {{ ");
                self.wrap(operator, stmt.span(), &before, " }");
            } else if let Stmt::Expr(Expr::If(choice), None) = stmt
                && choice.else_branch.is_none()
                && index + 1 < block.stmts.len()
            {
                let before = format!("if !{SWITCH}::on({NUMBER}) {{ ");
                self.wrap(Operator::Delete, stmt.span(), &before, " }");
            }
            if let Some(guard) = guard_of(stmt, self.source)
                && index + 2 < block.stmts.len()
            {
                let last = &block.stmts[block.stmts.len() - 1];
                let at = last.span().byte_range();
                let text = format!("if {SWITCH}::on({NUMBER}) {{ drop({guard}); }} ");
                let edits = vec![opening(&(at.start..usize::MAX), &text)];
                self.add(Operator::EarlyUnlock, stmt.span(), edits);
                let site = self.sites.last_mut().expect("a site was just added");
                site.last_line = last.span().end().line;
            }
        }
    }

    fn body(&mut self, name: &str, output: &ReturnType, block: &Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        let at = first.span().byte_range().start;
        for value in constants(output) {
            let text = format!("if {SWITCH}::on({NUMBER}) {{ return {value}; }} ");
            let edits = vec![opening(&(at..usize::MAX), &text)];
            self.add(Operator::Constant, first.span(), edits);
            let site = self.sites.last_mut().expect("a site was just added");
            site.text = format!("fn {name} returns {value}");
        }
    }

    fn function(
        &mut self,
        attrs: &[syn::Attribute],
        sig: &syn::Signature,
        block: &Block,
        visit: impl FnOnce(&mut Self),
    ) {
        let name = sig.ident.to_string();
        if is_test(attrs) || sig.constness.is_some() || name == "fmt" {
            return;
        }
        let outer = std::mem::replace(&mut self.function, name.clone());
        self.body(&name, &sig.output, block);
        visit(self);
        self.function = outer;
    }
}

impl<'ast> Visit<'ast> for SiteFinder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if !is_test(&item.attrs) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block, |finder| {
            visit::visit_block(finder, &item.block);
            finder.statements(&item.block);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block, |finder| {
            visit::visit_block(finder, &item.block);
            finder.statements(&item.block);
        });
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::If(choice) => self.negate(&choice.cond),
            Expr::While(repeated) if !has_let(&repeated.cond) => {
                let before = format!("(!{SWITCH}::on({NUMBER}) && (");
                self.wrap(Operator::DropLoop, repeated.cond.span(), &before, "))");
            }
            Expr::Block(inner) => self.statements(&inner.block),
            Expr::ForLoop(repeated) => self.statements(&repeated.body),
            Expr::Loop(repeated) => self.statements(&repeated.body),
            Expr::Binary(binary) => self.binary(binary),
            Expr::MethodCall(call)
                if call.method == "drain" && call.args.len() == 1 && is_path(&call.args[0]) =>
            {
                let before =
                    format!("(if {SWITCH}::on({NUMBER}) {{ {SWITCH}::durable() }} else {{ ");
                self.wrap(Operator::DropOrder, call.span(), &before, " })");
            }
            Expr::Lit(ExprLit {
                lit: Lit::Int(number),
                ..
            }) => {
                let before = format!("{SWITCH}::plus({NUMBER}, ");
                self.wrap(Operator::PlusOne, number.span(), &before, ")");
            }
            _ => {}
        }
        match expr {
            Expr::If(choice) => {
                visit::visit_expr(self, expr);
                self.statements(&choice.then_branch);
            }
            Expr::While(repeated) => {
                visit::visit_expr(self, expr);
                self.statements(&repeated.body);
            }
            _ => visit::visit_expr(self, expr),
        }
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.negate(guard);
        }
        visit::visit_arm(self, arm);
    }

    // These items must be constant, so they get no mutants.
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_pat(&mut self, _: &'ast syn::Pat) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}
    fn visit_item_struct(&mut self, _: &'ast syn::ItemStruct) {}
    fn visit_attribute(&mut self, _: &'ast syn::Attribute) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }
}

impl SiteFinder<'_> {
    fn binary(&mut self, binary: &syn::ExprBinary) {
        let function = match binary.op {
            BinOp::Lt(_) => "lt",
            BinOp::Le(_) => "le",
            BinOp::Gt(_) => "gt",
            BinOp::Ge(_) => "ge",
            BinOp::And(_) | BinOp::Or(_) if !has_let(&binary.left) => {
                return self.negate(&binary.left);
            }
            _ => return,
        };
        let of = binary.left.span().byte_range().start..binary.right.span().byte_range().end;
        let before = format!("{SWITCH}::{function}({NUMBER}, &(");
        let op = binary.op.span().byte_range();
        let between = SourceEdit {
            at: op,
            text: "), &(".into(),
            of: of.clone(),
            opens: false,
        };
        let edits = vec![opening(&of, &before), between, closing(&of, "))")];
        self.add(Operator::Bound, binary.span(), edits);
    }
}

fn opening(of: &Range<usize>, text: &str) -> SourceEdit {
    SourceEdit {
        at: of.start..of.start,
        text: text.into(),
        of: of.clone(),
        opens: true,
    }
}

fn closing(of: &Range<usize>, text: &str) -> SourceEdit {
    SourceEdit {
        at: of.end..of.end,
        text: text.into(),
        of: of.clone(),
        opens: false,
    }
}

/// Returns the name of the called function if the statement can be left out: it is a call or an assignment.
fn ordered_call(stmt: &Stmt) -> Option<String> {
    let Stmt::Expr(expr, Some(_)) = stmt else {
        return None;
    };
    let mut called = expr;
    while let Expr::Try(inner) = called {
        called = &inner.expr;
    }
    match called {
        Expr::MethodCall(call) => Some(call.method.to_string()),
        Expr::Call(call) => {
            let Expr::Path(path) = &*call.func else {
                return None;
            };
            let name = path.path.segments.last()?.ident.to_string();
            (name != "drop").then_some(name)
        }
        Expr::Assign(_) => Some("=".into()),
        Expr::Binary(binary) if is_assigning(&binary.op) => Some("op=".into()),
        _ => None,
    }
}

fn is_assigning(op: &BinOp) -> bool {
    matches!(
        op,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitXorAssign(_)
    )
}

/// Returns the name of the lock guard that a statement creates, if it creates one.
fn guard_of(stmt: &Stmt, source: &str) -> Option<String> {
    let Stmt::Local(local) = stmt else {
        return None;
    };
    let syn::Pat::Ident(name) = &local.pat else {
        return None;
    };
    let init = local.init.as_ref()?;
    let text = &source[init.expr.span().byte_range()];
    let locks = [".lock(", ".write(", ".lock_", ".try_lock("];
    let is_guard = text.len() < 120 && locks.iter().any(|lock| text.contains(lock));
    is_guard.then(|| name.ident.to_string())
}

/// Returns the constants that a function with this return type can return immediately.
fn constants(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, of) = output else {
        return vec!["()"];
    };
    let Type::Path(path) = &**of else {
        return Vec::new();
    };
    let Some(last) = path.path.segments.last() else {
        return Vec::new();
    };
    let first_argument = || match &last.arguments {
        syn::PathArguments::AngleBracketed(list) => list.args.first().cloned(),
        _ => None,
    };
    match last.ident.to_string().as_str() {
        "bool" => vec!["true", "false"],
        "u64" | "usize" | "u32" => vec!["0", "1"],
        "Option" => vec!["None"],
        "Result" => match first_argument() {
            Some(syn::GenericArgument::Type(Type::Tuple(tuple))) if tuple.elems.is_empty() => {
                vec!["Ok(())"]
            }
            Some(syn::GenericArgument::Type(Type::Path(of))) if of.path.is_ident("bool") => {
                vec!["Ok(true)", "Ok(false)"]
            }
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

fn is_path(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) => true,
        Expr::Reference(inner) => is_path(&inner.expr),
        Expr::Field(field) => is_path(&field.base),
        _ => false,
    }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        Expr::Paren(inner) => has_let(&inner.expr),
        Expr::Unary(inner) => has_let(&inner.expr),
        _ => false,
    }
}

fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| {
        attr.path().is_ident("test")
            || attr.path().is_ident("cfg")
                && attr
                    .meta
                    .require_list()
                    .is_ok_and(|list| list.tokens.to_string().contains("test"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "
fn save(medium: &Medium, suite: &mut Suite, at: u64) -> bool {
    let guard = medium.lock();
    medium.store(suite, at + 1);
    medium.flush(suite, at);
    if at < 5 && at != 2 { return false; }
    true
}
#[cfg(test)]
mod tests { fn unseen() -> bool { 1 < 2 } }
";

    #[test]
    fn every_operator_finds_its_places_and_the_source_with_all_mutants_parses() {
        let found = sites(SOURCE).unwrap();
        let count = |operator| found.iter().filter(|s| s.operator == operator).count();
        assert_eq!(count(Operator::Delete), 2);
        assert_eq!(count(Operator::DropOrder), 1);
        assert_eq!(count(Operator::Swap), 1);
        assert_eq!(count(Operator::Bound), 1);
        assert_eq!(count(Operator::PlusOne), 3);
        assert_eq!(count(Operator::Negate), 2);
        assert_eq!(count(Operator::Constant), 2);
        assert_eq!(count(Operator::EarlyUnlock), 1);
        assert!(found.iter().all(|site| site.function == "save"));
        let mutated = apply(SOURCE, found.iter().enumerate());
        syn::parse_file(&mutated).unwrap();
        assert_eq!(mutated.lines().count(), SOURCE.lines().count());
        assert!(!mutated.contains(NUMBER));
    }

    #[test]
    fn a_single_mutant_changes_only_its_place() {
        let found = sites(SOURCE).unwrap();
        let flush = found.iter().find(|s| s.operator == Operator::DropOrder);
        let mutated = apply(SOURCE, flush.into_iter().map(|site| (7, site)));
        let line = "if !crate::mutant_switch::on(7) { medium.flush(suite, at); }";
        assert!(mutated.contains(line), "{mutated}");
    }
}
