//! What a function may return in place of what it computes: the plainest values of its type.

use syn::{GenericArgument, PathArguments, ReturnType, Type, TypeImplTrait, TypeParamBound};

/// What can be done to a function's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// It may return one of these, as Rust writes them. Empty: nothing is known that it could return.
    Plain(Vec<String>),
    /// It returns an iterator of a type that only its body names: that can be made to yield nothing.
    Iterator,
}

/// What a function with this output may return.
#[must_use]
pub fn of_output(output: &ReturnType) -> Values {
    match output {
        ReturnType::Default => Values::Plain(vec!["()".to_owned()]),
        ReturnType::Type(_, of) => match &**of {
            Type::ImplTrait(of) if is_iterator(of) => Values::Iterator,
            of => Values::Plain(of_type(of)),
        },
    }
}

/// Whether this is an iterator, and promises nothing else that a filtered one would not keep.
fn is_iterator(of: &TypeImplTrait) -> bool {
    const KEPT: [&str; 3] = ["Iterator", "DoubleEndedIterator", "Clone"];
    let mut traits = of.bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last().map(|last| last.ident.to_string()),
        _ => None,
    });
    traits.clone().any(|name| name.ends_with("Iterator")) && traits.all(|name| KEPT.contains(&name.as_str()))
}

/// Whether `Default` makes what is named here is left to the compiler.
fn of_type(of: &Type) -> Vec<String> {
    let path = match of {
        Type::Path(of) => &of.path,
        Type::Paren(of) => return of_type(&of.elem),
        Type::Tuple(of) => {
            let parts: Option<Vec<String>> =
                of.elems.iter().map(|part| of_type(part).into_iter().next()).collect();
            return parts.map(|parts| format!("({})", parts.join(", "))).into_iter().collect();
        }
        Type::Reference(of) => return of_reference(&of.elem, of.mutability.is_some()),
        Type::Array(_) => return vec!["Default::default()".to_owned()],
        _ => return Vec::new(),
    };
    let Some(last) = path.segments.last() else { return Vec::new() };
    let argument = match &last.arguments {
        PathArguments::AngleBracketed(arguments) => {
            arguments.args.iter().find_map(|argument| match argument {
                GenericArgument::Type(of) => Some(of),
                _ => None,
            })
        }
        _ => None,
    };
    let plain: &[&str] = match (last.ident.to_string().as_str(), argument) {
        ("bool", _) => &["true", "false"],
        ("u8" | "u16" | "u32" | "u64" | "u128" | "usize", _) => &["0", "1"],
        ("i8" | "i16" | "i32" | "i64" | "i128" | "isize", _) => &["0", "1"],
        ("f32" | "f64", _) => &["0.0"],
        ("Option", _) => &["None"],
        ("String", _) => &["String::new()"],
        ("Vec", _) => &["Vec::new()"],
        ("Ordering", _) => &["std::cmp::Ordering::Equal"],
        ("Result", Some(of)) => return of_type(of).into_iter().map(|value| format!("Ok({value})")).collect(),
        ("Result", None) => &["Ok(Default::default())"],
        _ => &["Default::default()"],
    };
    plain.iter().map(|&value| value.to_owned()).collect()
}

fn of_reference(of: &Type, is_mutable: bool) -> Vec<String> {
    let value = match of {
        Type::Slice(_) if is_mutable => "&mut []",
        Type::Slice(_) => "&[]",
        Type::Path(of) if of.path.is_ident("str") && !is_mutable => "\"\"",
        _ => return Vec::new(),
    };
    vec![value.to_owned()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(output: &str) -> Vec<String> {
        match of_output(&syn::parse_str(output).unwrap()) {
            Values::Plain(values) => values,
            Values::Iterator => panic!("{output} is no iterator"),
        }
    }

    #[test]
    fn what_is_returned_instead_is_plain_and_of_the_type() {
        assert_eq!(plain(""), ["()"]);
        assert_eq!(plain("-> bool"), ["true", "false"]);
        assert_eq!(plain("-> u64"), ["0", "1"]);
        assert_eq!(plain("-> Option<Vec<u8>>"), ["None"]);
        assert_eq!(plain("-> Result<(), Refusal>"), ["Ok(())"]);
        assert_eq!(plain("-> io::Result<bool>"), ["Ok(true)", "Ok(false)"]);
        assert_eq!(plain("-> Result<Option<u8>, E>"), ["Ok(None)"]);
        assert_eq!(plain("-> (usize, bool)"), ["(0, true)"]);
        assert_eq!(plain("-> Vec<(u8, u8)>"), ["Vec::new()"]);
        assert_eq!(plain("-> &'a [u8]"), ["&[]"]);
        assert_eq!(plain("-> &'static str"), ["\"\""]);
        assert_eq!(plain("-> base::Epoch"), ["Default::default()"]);
    }

    #[test]
    fn what_nothing_plain_is_known_of_is_left_alone() {
        for output in
            ["-> &mut Group", "-> !", "-> impl Fn(u8) -> u8", "-> (bool, &Group)", "-> Result<&Group, E>"]
        {
            assert!(plain(output).is_empty(), "{output}");
        }
    }

    #[test]
    fn an_iterator_that_only_its_body_names_can_be_emptied() {
        let of = |output| of_output(&syn::parse_str(output).unwrap());
        assert_eq!(of("-> impl Iterator<Item = u8> + '_"), Values::Iterator);
        assert_eq!(of("-> impl DoubleEndedIterator<Item = u8> + use<'a>"), Values::Iterator);
        // It would have to know its length.
        assert_eq!(of("-> impl ExactSizeIterator<Item = u8>"), Values::Plain(Vec::new()));
    }
}
