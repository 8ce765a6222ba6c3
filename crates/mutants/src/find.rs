//! Where in a file small mistakes can be made, and which.
//!
//! Left alone: what is compiled for tests or under other conditions only, constants, types, patterns, what stands in macros,
//! `const fn`, what shows values to people (`Debug`, `Display`), what only tells of the way that was gone (`Milestone`, notes), and
//! what breaks promises on purpose (`Sabotage`).

use crate::values::{self, Values};
use proc_macro2::Span;
use std::collections::BTreeSet;
use std::ops::Range;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprBinary, ExprIf, ImplItemFn, ItemFn, ItemImpl, ItemMod, Lit, Pat,
    RangeLimits, Signature, Stmt, TraitItemFn, UnOp,
};

/// One mistake that can be made in a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// What kind of mistake it is.
    pub operator: String,
    /// The code that stands there then.
    pub code: String,
}

/// How a place takes its mistakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An expression, and others instead of it.
    Instead,
    /// A statement, or an expression without a value, that can be left out.
    Unless,
    /// The begin of a condition that binds names: something more can be asked for, which never holds.
    Chain,
    /// The begin of a function, which can return there.
    Return,
    /// All of a function's body, an iterator that can yield nothing.
    Emptied,
    /// All of a function's body. Nothing is done to it: it tells which places belong together.
    Body,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// Where it is, in bytes.
    pub range: Range<usize>,
    /// How it takes its mistakes.
    pub form: Form,
    /// The function that it is in.
    pub function: String,
    /// The code there, as a person is to see it.
    pub original: String,
    /// What can be made of it: one at a time.
    pub mistakes: Vec<Mistake>,
}

/// All places of a file, in the order of their begins, outer ones first.
///
/// # Errors
/// It is no Rust.
pub fn sites(source: &str) -> syn::Result<Vec<Site>> {
    let file = syn::parse_file(source)?;
    let mut finder = Finder {
        source,
        sites: Vec::new(),
        owner: String::new(),
        functions: Vec::new(),
        kept: BTreeSet::new(),
    };
    for item in &file.items {
        finder.visit_item(item);
    }
    finder.sites.sort_by_key(|site| site.range.start);
    Ok(finder.sites)
}

/// Whether something is compiled under a condition only.
pub(crate) fn is_conditional(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|one| one.path().is_ident("cfg"))
}

struct Finder<'a> {
    source: &'a str,
    sites: Vec<Site>,
    /// The type whose methods are looked at, if any.
    owner: String,
    /// The functions that are looked at: one in another.
    functions: Vec<String>,
    /// Begins of statements that are not to be left out: that would be no mistake of its own, or none that compiles.
    kept: BTreeSet<usize>,
}

fn mistake(operator: impl Into<String>, code: impl Into<String>) -> Mistake {
    Mistake { operator: operator.into(), code: code.into() }
}

fn range(node: &impl Spanned) -> Range<usize> {
    node.span().byte_range()
}

/// What another operator can stand in place of this one.
fn swaps(operator: &BinOp) -> &'static [&'static str] {
    match operator {
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        // The neighbour, and the opposite direction.
        BinOp::Lt(_) => &["<=", ">"],
        BinOp::Le(_) => &["<", ">="],
        BinOp::Gt(_) => &[">=", "<"],
        BinOp::Ge(_) => &[">", "<="],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) => &["*"],
        BinOp::Rem(_) => &["/"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) => &["&"],
        BinOp::BitXor(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["/="],
        BinOp::DivAssign(_) => &["*="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) => &["&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

/// The method that does the contrary, if both take the same.
fn opposite(method: &str, arguments: usize) -> Option<&'static str> {
    Some(match (method, arguments) {
        ("min", 0 | 1) => "max",
        ("max", 0 | 1) => "min",
        ("min_by_key", 1) => "max_by_key",
        ("max_by_key", 1) => "min_by_key",
        ("any", 1) => "all",
        ("all", 1) => "any",
        ("saturating_add", 1) => "saturating_sub",
        ("saturating_sub", 1) => "saturating_add",
        ("wrapping_add", 1) => "wrapping_sub",
        ("wrapping_sub", 1) => "wrapping_add",
        ("checked_add", 1) => "checked_sub",
        ("checked_sub", 1) => "checked_add",
        _ => return None,
    })
}

/// The expression without parentheses around it.
fn bare(expression: &Expr) -> &Expr {
    match expression {
        Expr::Paren(inner) => bare(&inner.expr),
        other => other,
    }
}

/// Whether a condition binds names.
fn binds(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(both) => matches!(both.op, BinOp::And(_)) && (binds(&both.left) || binds(&both.right)),
        _ => false,
    }
}

/// What a statement does that can be left out.
fn omission(expression: &Expr) -> Option<&'static str> {
    match expression {
        Expr::Call(_) | Expr::MethodCall(_) => Some("call left out"),
        Expr::Try(inner) => omission(&inner.expr),
        Expr::Await(inner) => omission(&inner.base),
        Expr::Assign(_) => Some("assignment left out"),
        Expr::Return(_) => Some("return left out"),
        _ => None,
    }
}

/// Whether a block is one statement that can be left out.
fn is_one_omission(block: &Block) -> bool {
    matches!(&block.stmts[..], [Stmt::Expr(only, _)] if omission(only).is_some())
}

impl<'a> Finder<'a> {
    fn text(&self, range: Range<usize>) -> &'a str {
        &self.source[range]
    }

    /// Notes a place, unless nothing can be done there.
    fn add(&mut self, range: Range<usize>, form: Form, original: &str, mistakes: Vec<Mistake>) {
        if !mistakes.is_empty() {
            let (function, original) =
                (self.functions.last().cloned().unwrap_or_default(), original.to_owned());
            self.sites.push(Site { range, form, function, original, mistakes });
        }
    }

    fn instead(&mut self, node: &impl Spanned, mistakes: Vec<Mistake>) {
        let range = range(node);
        self.add(range.clone(), Form::Instead, self.text(range), mistakes);
    }

    /// Whether an expression only asks whether a promise is to be broken on purpose: if so, whether it asks that it is.
    fn sabotage(&self, expression: &Expr) -> Option<bool> {
        match bare(expression) {
            Expr::Unary(inner) if matches!(inner.op, UnOp::Not(_)) => {
                self.sabotage(&inner.expr).map(|is| !is)
            }
            Expr::Binary(both) if matches!(both.op, BinOp::And(_) | BinOp::Or(_)) => None,
            other => {
                let is_contrary = matches!(other, Expr::Binary(both) if matches!(both.op, BinOp::Ne(_)));
                self.text(range(other)).contains("Sabotage::").then_some(!is_contrary)
            }
        }
    }

    /// Whether all that an expression does is to tell of the way that was gone.
    fn only_tells(&self, expression: &Expr) -> bool {
        match bare(expression) {
            Expr::MethodCall(call) => call.args.first().is_some_and(|first| {
                let text = self.text(range(first));
                call.method == "pass" && text.contains("Milestone::")
                    || call.method == "note" && text.starts_with("format!")
            }),
            Expr::If(inner) => self.all_only_tells(inner),
            _ => false,
        }
    }

    /// Whether whatever a condition decides is what is told.
    fn all_only_tells(&self, node: &ExprIf) -> bool {
        let tells = |statement: &Stmt| matches!(statement, Stmt::Expr(only, _) if self.only_tells(only));
        let otherwise = node.else_branch.as_ref().is_none_or(|(_, other)| match &**other {
            Expr::Block(inner) => inner.block.stmts.iter().all(tells),
            other => self.only_tells(other),
        });
        node.then_branch.stmts.iter().all(tells) && otherwise
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        let is_inner = |one: &Attribute| matches!(one.style, syn::AttrStyle::Inner(_));
        let breaks = |text: &str| text.contains("Sabotage") || text.contains("Broken");
        if signature.constness.is_some()
            || is_conditional(attributes)
            || attributes.iter().any(is_inner)
            || breaks(self.text(range(signature)))
        {
            return;
        }
        let is_method = !self.owner.is_empty() && self.functions.is_empty();
        let owner = if is_method { format!("{}::", self.owner) } else { String::new() };
        let function = format!("{owner}{}", signature.ident);
        self.functions.push(function.clone());
        let braces = block.brace_token.span;
        let body = braces.open().byte_range().end..braces.close().byte_range().start;
        let (original, mistakes) = (String::new(), Vec::new());
        self.sites.push(Site { range: body.clone(), form: Form::Body, function, original, mistakes });
        self.results(signature, body, block);
        self.visit_block(block);
        self.functions.pop();
    }

    /// What a function may return at once.
    fn results(&mut self, signature: &Signature, body: Range<usize>, block: &Block) {
        let shown = format!("the body of {}", signature.ident);
        let is_empty = block.stmts.is_empty();
        let operator = "body replaced";
        match values::of_output(&signature.output) {
            _ if is_empty => {}
            Values::Iterator => {
                self.add(body, Form::Emptied, &shown, vec![mistake(operator, "nothing")]);
            }
            Values::Plain(values) => {
                let before = self.text(body.clone()).trim();
                let is_unit = values == ["()"];
                // Leaving its only statement out is the same.
                let values = if is_unit && is_one_omission(block) { Vec::new() } else { values };
                let values = values.into_iter().filter(|value| value != before);
                let mistakes = values.map(|code| mistake(operator, code)).collect();
                self.add(body.start..body.start, Form::Return, &shown, mistakes);
                if is_unit {
                    self.tails(block);
                }
            }
        }
    }

    /// What a block without a value ends in, without a semicolon, can be left out.
    fn tails(&mut self, block: &Block) {
        if let Some(Stmt::Expr(last, None)) = block.stmts.last() {
            self.tail(last);
        }
    }

    fn tail(&mut self, expression: &Expr) {
        match expression {
            told if self.only_tells(told) => {}
            Expr::Block(inner) => self.tails(&inner.block),
            Expr::If(inner) => {
                let sabotage = self.sabotage(&inner.cond);
                // A condition that never holds is the same as leaving out all that depends on it.
                let is_said = inner.else_branch.is_none() && is_one_omission(&inner.then_branch);
                if sabotage != Some(true) && !is_said {
                    self.tails(&inner.then_branch);
                }
                if let Some((_, other)) = &inner.else_branch
                    && sabotage != Some(false)
                {
                    self.tail(other);
                }
            }
            Expr::Match(inner) => {
                for arm in &inner.arms {
                    if !self.is_left_alone(arm) {
                        self.tail(&arm.body);
                    }
                }
            }
            other => self.unless(other, range(other)),
        }
    }

    /// A statement that can be left out, if it is one.
    fn unless(&mut self, expression: &Expr, range: Range<usize>) {
        let Some(operator) = omission(expression) else { return };
        if !self.kept.contains(&range.start) {
            self.add(range.clone(), Form::Unless, self.text(range), vec![mistake(operator, "")]);
        }
    }

    fn is_left_alone(&self, arm: &Arm) -> bool {
        is_conditional(&arm.attrs) || self.text(range(&arm.pat)).contains("Sabotage::")
    }

    /// What decides whether something is done: it may always hold, or never.
    fn condition(&mut self, condition: &Expr) {
        if self.sabotage(condition).is_some() {
            return;
        }
        let forced = |code: &str| mistake("condition forced", code);
        if binds(condition) {
            let range = range(condition);
            self.add(range.start..range.start, Form::Chain, self.text(range), vec![forced("false")]);
            self.parts(condition);
        } else {
            self.instead(condition, vec![forced("true"), forced("false")]);
        }
    }

    /// The parts of a condition that binds names; those that do not may each always hold.
    fn parts(&mut self, condition: &Expr) {
        match condition {
            Expr::Let(_) => {}
            Expr::Binary(both) if matches!(both.op, BinOp::And(_)) && binds(condition) => {
                self.parts(&both.left);
                self.parts(&both.right);
            }
            part if self.sabotage(part).is_some() => {}
            part => self.instead(part, vec![mistake("part of a condition forced", "true")]),
        }
    }

    /// The same code with another name in it.
    fn renamed(&self, all: Range<usize>, name: Span, other: &str) -> String {
        let name = name.byte_range();
        format!("{}{other}{}", self.text(all.start..name.start), self.text(name.end..all.end))
    }
}

/// Nothing of these can be changed when the program runs, or is to be.
macro_rules! left_alone {
    ($($method:ident: $node:ty),* $(,)?) => {
        $(fn $method(&mut self, _: &'ast $node) {})*
    };
}

impl<'ast> Visit<'ast> for Finder<'_> {
    left_alone! {
        visit_attribute: Attribute,
        visit_type: syn::Type,
        visit_pat: Pat,
        visit_path: syn::Path,
        visit_generics: syn::Generics,
        visit_angle_bracketed_generic_arguments: syn::AngleBracketedGenericArguments,
        visit_macro: syn::Macro,
        visit_item_const: syn::ItemConst,
        visit_item_static: syn::ItemStatic,
        visit_item_enum: syn::ItemEnum,
        visit_item_struct: syn::ItemStruct,
        visit_item_union: syn::ItemUnion,
        visit_item_type: syn::ItemType,
        visit_item_use: syn::ItemUse,
        visit_impl_item_const: syn::ImplItemConst,
        visit_trait_item_const: syn::TraitItemConst,
        visit_expr_const: syn::ExprConst,
    }

    fn visit_item_mod(&mut self, node: &'ast ItemMod) {
        if !is_conditional(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_impl(&mut self, node: &'ast ItemImpl) {
        let shows = node.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        if is_conditional(&node.attrs)
            || shows.is_some_and(|last| last.ident == "Debug" || last.ident == "Display")
        {
            return;
        }
        let owner = match &*node.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let before = std::mem::replace(&mut self.owner, owner.unwrap_or_default());
        visit::visit_item_impl(self, node);
        self.owner = before;
    }

    fn visit_item_trait(&mut self, node: &'ast syn::ItemTrait) {
        if !is_conditional(&node.attrs) {
            let before = std::mem::replace(&mut self.owner, node.ident.to_string());
            visit::visit_item_trait(self, node);
            self.owner = before;
        }
    }

    fn visit_item_fn(&mut self, node: &'ast ItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_impl_item_fn(&mut self, node: &'ast ImplItemFn) {
        self.function(&node.attrs, &node.sig, &node.block);
    }

    fn visit_trait_item_fn(&mut self, node: &'ast TraitItemFn) {
        if let Some(block) = &node.default {
            self.function(&node.attrs, &node.sig, block);
        }
    }

    fn visit_block(&mut self, node: &'ast Block) {
        for (index, statement) in node.stmts.iter().enumerate() {
            let is_last = index + 1 == node.stmts.len();
            if let Stmt::Expr(expression @ (Expr::If(_) | Expr::Match(_) | Expr::Block(_)), None) = statement
                && !is_last
                && !self.text(range(statement)).starts_with("#[cfg")
            {
                self.tail(expression);
            }
            self.visit_stmt(statement);
        }
    }

    fn visit_stmt(&mut self, node: &'ast Stmt) {
        let range = range(node);
        if self.text(range.clone()).starts_with("#[cfg")
            || matches!(node, Stmt::Expr(told, _) if self.only_tells(told))
        {
            return;
        }
        match node {
            Stmt::Expr(expression, Some(_)) => self.unless(expression, range),
            Stmt::Local(local) => {
                // What follows it needs the names that it binds, so its other end must not go on.
                if let Some((_, other)) = local.init.as_ref().and_then(|init| init.diverge.as_ref())
                    && let Expr::Block(other) = &**other
                    && let Some(last) = other.block.stmts.last()
                {
                    self.kept.insert(last.span().byte_range().start);
                }
            }
            _ => {}
        }
        visit::visit_stmt(self, node);
    }

    fn visit_expr_if(&mut self, node: &'ast ExprIf) {
        if self.all_only_tells(node) {
            return self.visit_expr(&node.cond);
        }
        if node.else_branch.is_none() && is_one_omission(&node.then_branch) {
            self.kept.extend(node.then_branch.stmts.iter().map(|only| range(only).start));
        }
        self.condition(&node.cond);
        // What is done only if a promise is to be broken is none of the program.
        let sabotage = self.sabotage(&node.cond);
        self.visit_expr(&node.cond);
        if sabotage != Some(true) {
            self.visit_block(&node.then_branch);
        }
        if let Some((_, other)) = &node.else_branch
            && sabotage != Some(false)
        {
            self.visit_expr(other);
        }
    }

    fn visit_expr_while(&mut self, node: &'ast syn::ExprWhile) {
        self.condition(&node.cond);
        self.tails(&node.body);
        visit::visit_expr_while(self, node);
    }

    fn visit_expr_for_loop(&mut self, node: &'ast syn::ExprForLoop) {
        self.tails(&node.body);
        visit::visit_expr_for_loop(self, node);
    }

    fn visit_expr_loop(&mut self, node: &'ast syn::ExprLoop) {
        self.tails(&node.body);
        visit::visit_expr_loop(self, node);
    }

    fn visit_arm(&mut self, node: &'ast Arm) {
        if self.is_left_alone(node) {
            return;
        }
        if let Pat::Guard(guarded) = &node.pat {
            self.condition(&guarded.guard);
            self.visit_expr(&guarded.guard);
        }
        if !self.only_tells(&node.body) {
            self.visit_expr(&node.body);
        }
    }

    fn visit_field_value(&mut self, node: &'ast syn::FieldValue) {
        if !is_conditional(&node.attrs) {
            visit::visit_field_value(self, node);
        }
    }

    fn visit_expr_binary(&mut self, node: &'ast ExprBinary) {
        let is_sabotage = self.sabotage(&node.left).is_some() || self.sabotage(&node.right).is_some();
        if !is_sabotage && !binds(&node.left) && !binds(&node.right) {
            let (left, right) = (self.text(range(&node.left)), self.text(range(&node.right)));
            let own = self.text(range(&node.op));
            let swapped = |other: &&str| {
                mistake(format!("{own} becomes {other}"), format!("({left}) {other} ({right})"))
            };
            self.instead(node, swaps(&node.op).iter().map(swapped).collect());
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        if !matches!(node.op, UnOp::Deref(_)) && self.sabotage(&node.expr).is_none() {
            let removed = format!("{} removed", self.text(range(&node.op)));
            self.instead(node, vec![mistake(removed, self.text(range(&node.expr)))]);
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_method_call(&mut self, node: &'ast syn::ExprMethodCall) {
        if let Some(other) = opposite(&node.method.to_string(), node.args.len()) {
            let code = self.renamed(range(node), node.method.span(), other);
            self.instead(node, vec![mistake(format!("{} becomes {other}", node.method), code)]);
        }
        visit::visit_expr_method_call(self, node);
    }

    fn visit_expr_call(&mut self, node: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*node.func
            && let Some(last) = function.path.segments.last()
            && node.args.len() == 2
            && let Some(other @ ("min" | "max")) = opposite(&last.ident.to_string(), 1)
        {
            let code = self.renamed(range(node), last.ident.span(), other);
            self.instead(node, vec![mistake(format!("{} becomes {other}", last.ident), code)]);
        }
        visit::visit_expr_call(self, node);
    }

    fn visit_expr_range(&mut self, node: &'ast syn::ExprRange) {
        // A literal is changed by itself.
        if let Some(end) = &node.end
            && !(matches!(node.limits, RangeLimits::HalfOpen(_)) && matches!(bare(end), Expr::Lit(_)))
        {
            let step = if matches!(node.limits, RangeLimits::HalfOpen(_)) { "+ 1" } else { "- 1" };
            let code = format!("({}) {step}", self.text(range(&**end)));
            self.instead(&**end, vec![mistake("end of a range", code)]);
        }
        visit::visit_expr_range(self, node);
    }

    fn visit_expr_lit(&mut self, node: &'ast syn::ExprLit) {
        if matches!(node.lit, Lit::Int(_)) {
            let code = format!("{} + 1", self.text(range(node)));
            self.instead(node, vec![mistake("number", code)]);
        }
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
    }
}
