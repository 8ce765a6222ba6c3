//! The code of a file with its mistakes in it, each behind the switch, and which of them an error of the compiler is about.
//!
//! Only one mutant is on at a time. So what stands instead of some code is a copy of that code without others in it, and what
//! is made of a file grows with the depth of its expressions, not with the product of their mistakes.

use crate::find::{Form, Mistake, Site};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::ops::Range;

/// Where in what was written a place is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// All of it, in bytes.
    whole: Range<usize>,
    /// What is there for one mutant alone.
    own: Vec<(u32, Range<usize>)>,
    form: Form,
    /// A return that can be left out: execution goes on to what follows.
    is_return: bool,
    /// An assignment that can be left out: what was there stays.
    is_assignment: bool,
}

/// A file with mutants in it.
#[derive(Clone, Debug, Default)]
pub struct Rewritten {
    /// Its code.
    pub text: String,
    marks: Vec<Mark>,
}

/// What an error of the compiler points at in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blame {
    /// Where the error is, in bytes.
    pub primary: Vec<Range<usize>>,
    /// What it has to do with.
    pub secondary: Vec<Range<usize>>,
    /// It says that something without a value stands where a value is needed.
    pub lacks_value: bool,
    /// It says that something is not there any more, or borrowed, where execution comes to.
    pub is_of_flow: bool,
    /// To look more closely took too long: all of a function is to blame.
    pub is_wide: bool,
}

/// Whether a mutant is on, in the rewritten code.
fn is_on(mutant: u32) -> String {
    format!("::base::mutant::is({mutant})")
}

impl Rewritten {
    /// Writes a file anew with those of its mutants that are `wanted`. Its first mistake is the mutant of the number `first`,
    /// the others have the numbers that follow.
    #[must_use]
    pub fn new(source: &str, sites: &[Site], first: u32, wanted: impl Fn(u32) -> bool) -> Rewritten {
        let mut out = Rewritten::default();
        let mut open: Vec<(Range<usize>, usize, u32)> = Vec::new();
        let (mut at, mut next) = (0, first);
        for site in sites {
            while let Some((range, mark, number)) = open.pop_if(|(range, ..)| range.end <= site.range.start) {
                out.text.push_str(&source[at..range.end]);
                at = range.end;
                out.close(mark, number);
            }
            assert!(
                open.last().is_none_or(|(range, ..)| site.range.end <= range.end),
                "places lie in one another"
            );
            out.text.push_str(&source[at..site.range.start]);
            at = site.range.start;
            let live: Vec<(u32, &Mistake)> =
                (next..).zip(&site.mistakes).filter(|(number, _)| wanted(*number)).collect();
            next += site.mistakes.len() as u32;
            if live.is_empty() && site.form != Form::Body {
                continue;
            }
            let mark = out.marks.len();
            out.open(site, &live);
            open.push((site.range.clone(), mark, live.first().map_or(0, |(number, _)| *number)));
        }
        while let Some((range, mark, number)) = open.pop() {
            out.text.push_str(&source[at..range.end]);
            at = range.end;
            out.close(mark, number);
        }
        out.text.push_str(&source[at..]);
        out
    }

    fn own(&mut self, mark: usize, mutant: u32, text: &str) {
        let begin = self.text.len();
        self.text.push_str(text);
        self.marks[mark].own.push((mutant, begin..self.text.len()));
    }

    fn open(&mut self, site: &Site, live: &[(u32, &Mistake)]) {
        let (begin, mark, form) = (self.text.len(), self.marks.len(), site.form);
        let leaves_out = |what: &str| {
            form == Form::Unless && site.mistakes.iter().any(|mistake| mistake.operator.starts_with(what))
        };
        let (is_return, is_assignment) = (leaves_out("return"), leaves_out("assignment"));
        self.marks.push(Mark { whole: begin..begin, own: Vec::new(), form, is_return, is_assignment });
        match form {
            Form::Instead => {
                self.text.push('(');
                for (mutant, mistake) in live {
                    self.own(mark, *mutant, &format!("if {} {{ {} }} else ", is_on(*mutant), mistake.code));
                }
                self.text.push_str("{ ");
            }
            Form::Unless => live
                .iter()
                .for_each(|(mutant, _)| self.own(mark, *mutant, &format!("if !{} {{ ", is_on(*mutant)))),
            Form::Chain => live
                .iter()
                .for_each(|(mutant, _)| self.own(mark, *mutant, &format!("!{} && ", is_on(*mutant)))),
            Form::Return => {
                for (mutant, mistake) in live {
                    self.own(
                        mark,
                        *mutant,
                        &format!(" if {} {{ return {}; }}", is_on(*mutant), mistake.code),
                    );
                }
            }
            Form::Emptied => self.text.push_str("({"),
            Form::Body => {}
        }
    }

    fn close(&mut self, mark: usize, number: u32) {
        match self.marks[mark].form {
            Form::Instead => self.text.push_str(" })"),
            Form::Unless => self.text.push_str(" }"),
            Form::Emptied => self.own(mark, number, &format!("}}).filter(|_| !{})", is_on(number))),
            Form::Chain | Form::Return | Form::Body => {}
        }
        self.marks[mark].whole.end = self.text.len();
    }

    /// Which mutants an error of the compiler is about, as far as can be told. Never none while the function that it points at
    /// has any: without those that it is not about, the compiler says more.
    #[must_use]
    pub fn blamed(&self, blame: &Blame) -> BTreeSet<u32> {
        let all = || blame.primary.iter().chain(&blame.secondary);
        let of = |marks: Vec<&Mark>| -> BTreeSet<u32> {
            marks.into_iter().flat_map(|mark| mark.own.iter().map(|(mutant, _)| *mutant)).collect()
        };
        let within =
            |inner: &Range<usize>, outer: &Range<usize>| outer.start <= inner.start && inner.end <= outer.end;
        // In what is there for a mutant alone.
        let alone = |span: &Range<usize>| -> Vec<u32> {
            let own = self.marks.iter().flat_map(|mark| &mark.own);
            own.filter(|(_, own)| within(span, own)).map(|(mutant, _)| *mutant).collect()
        };
        // What is left out lacks as a value in the code around it.
        let lacking = |span: &Range<usize>| -> BTreeSet<u32> {
            let omitted =
                self.marks.iter().filter(|mark| mark.form == Form::Unless && within(&mark.whole, span));
            if blame.lacks_value { of(omitted.collect()) } else { BTreeSet::new() }
        };
        // In a place that a mutant shares with what it replaces: the innermost.
        let shared = |span: &Range<usize>| -> BTreeSet<u32> {
            let around = self.marks.iter().filter(|mark| !mark.own.is_empty() && within(span, &mark.whole));
            of(around.min_by_key(|mark| mark.whole.len()).into_iter().collect())
        };
        let function = |span: &Range<usize>| {
            let around =
                self.marks.iter().filter(|mark| mark.form == Form::Body && within(span, &mark.whole));
            around.min_by_key(|mark| mark.whole.len())
        };
        let in_function = |span: &Range<usize>| -> BTreeSet<u32> {
            let Some(body) = function(span) else { return BTreeSet::new() };
            of(self.marks.iter().filter(|mark| within(&mark.whole, &body.whole)).collect())
        };
        if blame.is_wide {
            return all().flat_map(in_function).collect();
        }
        // Execution goes on where it returned, or what took something is left out: between what the error has to do with, or
        // else right behind.
        let going_on = |span: &Range<usize>| -> BTreeSet<u32> {
            let (begin, end) = (all().map(|span| span.start).min(), all().map(|span| span.end).max());
            let (Some(begin), Some(end), Some(body)) = (begin, end, function(span)) else {
                return BTreeSet::new();
            };
            let is_behind = |mark: &&Mark| {
                mark.form == Form::Unless && within(&mark.whole, &body.whole) && mark.whole.end > begin
            };
            let omitted = || self.marks.iter().filter(is_behind);
            let between = || omitted().filter(|mark| mark.whole.start < end);
            let behind = omitted().filter(|mark| mark.is_return || mark.is_assignment);
            let steps: [Vec<&Mark>; 3] = [
                between().filter(|mark| mark.is_return).collect(),
                between().collect(),
                behind.min_by_key(|mark| mark.whole.start).into_iter().collect(),
            ];
            of(steps.into_iter().find(|marks| !marks.is_empty()).unwrap_or_default())
        };
        let of_flow = blame.primary.iter().filter(|_| blame.is_of_flow);
        let steps: [BTreeSet<u32>; 7] = [
            blame.primary.iter().flat_map(alone).collect(),
            of_flow.flat_map(going_on).collect(),
            all().flat_map(alone).collect(),
            blame.primary.iter().flat_map(lacking).collect(),
            blame.primary.iter().flat_map(shared).collect(),
            all().flat_map(shared).collect(),
            all().flat_map(in_function).collect(),
        ];
        steps.into_iter().find(|blamed| !blamed.is_empty()).unwrap_or_default()
    }
}

/// Text on one line, and no longer than a line.
#[must_use]
pub fn on_a_line(text: &str) -> String {
    const CHARACTERS_MAX: usize = 90;
    let mut line = String::new();
    for word in text.split_whitespace() {
        let separator = if line.is_empty() { "" } else { " " };
        let _ = write!(line, "{separator}{word}");
    }
    match line.char_indices().nth(CHARACTERS_MAX) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find;

    fn rewritten(source: &str, wanted: impl Fn(u32) -> bool) -> String {
        let sites = find::sites(source).unwrap();
        let text = Rewritten::new(source, &sites, 1, wanted).text;
        syn::parse_file(&text).unwrap();
        text.replace("::base::mutant::is", "is")
    }

    /// What becomes of an expression, in a function that gives nothing else to change.
    fn expression(code: &str) -> String {
        let text = rewritten(&format!("fn f() -> &X {{ {code} }}"), |_| true);
        text.trim_start_matches("fn f() -> &X { ").trim_end_matches(" }").to_owned()
            + if code.ends_with('}') { " }" } else { "" }
    }

    /// What becomes of statements.
    fn statements(code: &str) -> String {
        let text = rewritten(&format!("fn f() -> &X {{ {code} x }}"), |_| true);
        text.trim_start_matches("fn f() -> &X { ").trim_end_matches(" x }").to_owned()
    }

    #[test]
    fn every_operator_stands_beside_what_it_replaces() {
        for (operator, others) in [
            ("==", &["!="][..]),
            ("!=", &["=="]),
            ("<", &["<=", ">"]),
            ("<=", &["<", ">="]),
            (">", &[">=", "<"]),
            (">=", &[">", "<="]),
            ("&&", &["||"]),
            ("||", &["&&"]),
            ("+", &["-"]),
            ("-", &["+"]),
            ("*", &["/"]),
            ("/", &["*"]),
            ("%", &["/"]),
            ("&", &["|"]),
            ("|", &["&"]),
            ("^", &["&"]),
            ("<<", &[">>"]),
            (">>", &["<<"]),
            ("+=", &["-="]),
            ("-=", &["+="]),
            ("*=", &["/="]),
            ("/=", &["*="]),
            ("&=", &["|="]),
            ("|=", &["&="]),
            ("<<=", &[">>="]),
            (">>=", &["<<="]),
        ] {
            let each = others
                .iter()
                .zip(1..)
                .map(|(other, number)| format!("if is({number}) {{ (a) {other} (b) }} else "));
            let wanted = format!("({}{{ a {operator} b }})", each.collect::<String>());
            assert_eq!(expression(&format!("a {operator} b")), wanted);
        }
    }

    #[test]
    fn other_expressions_stand_beside_what_they_replace() {
        for (code, wanted) in [
            ("!a", "(if is(1) { a } else { !a })"),
            ("-a", "(if is(1) { a } else { -a })"),
            ("*a", "*a"),
            ("7", "(if is(1) { 7 + 1 } else { 7 })"),
            ("0x1f_u64", "(if is(1) { 0x1f_u64 + 1 } else { 0x1f_u64 })"),
            ("a.0", "a.0"),
            ("[5; 9]", "[(if is(1) { 5 + 1 } else { 5 }); 9]"),
            ("a.min(b)", "(if is(1) { a.max(b) } else { a.min(b) })"),
            ("std::cmp::max(a, b)", "(if is(1) { std::cmp::min(a, b) } else { std::cmp::max(a, b) })"),
            ("a.saturating_sub(b)", "(if is(1) { a.saturating_add(b) } else { a.saturating_sub(b) })"),
            ("a.any(|x| x)", "(if is(1) { a.all(|x| x) } else { a.any(|x| x) })"),
            ("a..b", "a..(if is(1) { (b) + 1 } else { b })"),
            ("a..=b", "a..=(if is(1) { (b) - 1 } else { b })"),
            ("a..9", "a..(if is(1) { 9 + 1 } else { 9 })"),
            ("a..", "a.."),
            ("|x| x == a", "|x| (if is(1) { (x) != (a) } else { x == a })"),
        ] {
            assert_eq!(expression(code), wanted);
        }
    }

    #[test]
    fn conditions_are_forced_and_those_that_bind_names_get_another_part() {
        for (code, wanted) in [
            (
                "if a { x } else { y }",
                "if (if is(1) { true } else if is(2) { false } else { a }) { x } else { y }",
            ),
            ("while a { x; }", "while (if is(1) { true } else if is(2) { false } else { a }) { x; }"),
            (
                "match a { x if b => y, _ => z }",
                "match a { x if (if is(1) { true } else if is(2) { false } else { b }) => y, _ => z }",
            ),
            ("if let Some(x) = a { x }", "if !is(1) && let Some(x) = a { x }"),
            ("while let Some(x) = a { x; }", "while !is(1) && let Some(x) = a { x; }"),
            (
                "if let Some(x) = a && b { x }",
                "if !is(1) && let Some(x) = a && (if is(2) { true } else { b }) { x }",
            ),
            (
                "if b && let Some(x) = a { x }",
                "if !is(1) && (if is(2) { true } else { b }) && let Some(x) = a { x }",
            ),
        ] {
            assert_eq!(expression(code), wanted);
        }
    }

    #[test]
    fn statements_are_left_out() {
        for (code, wanted) in [
            ("a();", "if !is(1) { a(); }"),
            ("a.b();", "if !is(1) { a.b(); }"),
            ("a()?;", "if !is(1) { a()?; }"),
            ("a = b;", "if !is(1) { a = b; }"),
            ("{ return a; }", "{ if !is(1) { return a; } }"),
            ("for x in a { b() }", "for x in a { if !is(1) { b() } }"),
            (
                "match a { x => b(), _ => return }",
                "match a { x => if !is(1) { b() }, _ => if !is(2) { return } }",
            ),
            ("a!(1 + 1);", "a!(1 + 1);"),
            ("let a = b();", "let a = b();"),
            // Who does not return there has no name to go on with.
            ("let Some(a) = b else { return a; };", "let Some(a) = b else { return a; };"),
            // A condition that never holds is the same.
            ("if a { return b; }", "if (if is(1) { true } else if is(2) { false } else { a }) { return b; }"),
        ] {
            assert_eq!(statements(code), wanted);
        }
    }

    #[test]
    fn functions_return_at_once() {
        for (code, wanted) in [
            (
                "fn f() -> bool { a }",
                "fn f() -> bool { if is(1) { return true; } if is(2) { return false; } a }",
            ),
            ("fn f() -> bool { true }", "fn f() -> bool { if is(1) { return false; } true }"),
            ("fn f() -> Result<(), E> { a }", "fn f() -> Result<(), E> { if is(1) { return Ok(()); } a }"),
            (
                "fn f() { a(); b() }",
                "fn f() { if is(1) { return (); } if !is(2) { a(); } if !is(3) { b() } }",
            ),
            ("fn f() { a(); }", "fn f() { if !is(1) { a(); } }"),
            ("fn f() {}", "fn f() {}"),
            (
                "async fn f() -> u8 { a.await }",
                "async fn f() -> u8 { if is(1) { return 0; } if is(2) { return 1; } a.await }",
            ),
            (
                "fn f() -> impl Iterator<Item = u8> { a }",
                "fn f() -> impl Iterator<Item = u8> {({ a }).filter(|_| !is(1))}",
            ),
        ] {
            assert_eq!(rewritten(code, |_| true), wanted);
        }
    }

    #[test]
    fn what_is_not_of_the_program_when_it_runs_is_left_alone() {
        for code in [
            "const A: usize = 1 + 1; static B: u8 = 2;",
            "enum A { B = 1 }",
            "const fn f() -> u8 { 1 + 1 }",
            "#[cfg(test)] mod tests { fn f() -> u8 { 1 } }",
            "#[cfg(feature = \"broken\")] fn f() -> u8 { 1 }",
            "impl std::fmt::Display for A { fn fmt(&self) -> R { 1 + 1 } }",
            "fn f(a: [u8; 2 + 1]) -> &X { let b: [u8; 3] = a; b }",
            "fn f() -> &X { match a { 1..=2 => b, 3 => c, _ => d } }",
            "fn f() -> &X { matches!(a, 1 if 2 > 3); #[cfg(test)] a(1); x }",
            "fn f(sabotage: Sabotage) -> bool { sabotage == 1 }",
            "fn f() -> &X { if cx.breaks(Sabotage::SkipLease) { return 1 + 1; } x }",
            "fn f() -> &X { cx.pass(Milestone::LogBehind); if a { cx.note(format!(\"{b}\")); } x }",
            "fn f() -> &X { if a { cx.pass(Milestone::A); } else if b { cx.pass(Milestone::B); } x }",
        ] {
            assert_eq!(rewritten(code, |_| true), code);
        }
        // What stands beside a broken promise, or decides about more than what is told, is of the program.
        assert!(
            rewritten("fn f() -> &X { if a { cx.pass(Milestone::A); b(); } x }", |_| true).contains("is(2)")
        );
        assert_eq!(
            expression("a == b || cx.breaks(Sabotage::SkipLease)"),
            "(if is(1) { (a) != (b) } else { a == b }) || cx.breaks(Sabotage::SkipLease)"
        );
    }

    #[test]
    fn mutants_lie_in_one_another_and_what_replaces_some_has_none_in_it() {
        assert_eq!(
            expression("a == b && !c"),
            "(if is(1) { (a == b) || (!c) } else { (if is(2) { (a) != (b) } else { a == b }) && (if is(3) { c } else { !c }) })"
        );
        assert_eq!(
            expression("(a + b).min(c)"),
            "(if is(1) { (a + b).max(c) } else { ((if is(2) { (a) - (b) } else { a + b })).min(c) })"
        );
    }

    #[test]
    fn those_that_are_not_wanted_leave_no_trace_and_the_others_keep_their_numbers() {
        let source = "fn f() -> bool { a < 1 && b() }";
        assert_eq!(rewritten(source, |_| false), source);
        assert_eq!(
            rewritten(source, |mutant| mutant == 5),
            "fn f() -> bool { (if is(5) { (a) > (1) } else { a < 1 }) && b() }"
        );
    }

    #[test]
    fn bytes_are_not_characters_and_comments_stay() {
        let source = "// Größe → ∞\nfn f() -> &X { /* ä */ a == b // ü\n}\n";
        let wanted =
            "// Größe → ∞\nfn f() -> &X { /* ä */ (if is(1) { (a) != (b) } else { a == b }) // ü\n}\n";
        assert_eq!(rewritten(source, |_| true), wanted);
    }

    #[test]
    fn long_text_is_shown_on_a_line() {
        assert_eq!(on_a_line("a\n    .b()"), "a .b()");
        assert_eq!(on_a_line(&"ä".repeat(200)).chars().count(), 91);
    }
}
