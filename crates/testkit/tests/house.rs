//! What the repository says of itself: which crate may depend on which, what is pure, which folder of a crate on which, that
//! no type of `pg` grows into all of it again, and that the files and names in the docs exist.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, ImplItem, Item, UseTree, Visibility};

/// The crates, lower ones first: none depends on one behind it. What only tests link is not meant.
const LAYERS: [&str; 28] = [
    "base",
    "wire",
    "store",
    "tls",
    "pg",
    "client",
    "ring",
    "drive",
    "auth",
    "placement",
    "health",
    "registry",
    "registry-embedded",
    "registry-etcd",
    "cluster",
    "registry-remote",
    "manager",
    "api",
    "node",
    "volume",
    "doors",
    "capi",
    "sim",
    "fuzz",
    "lab",
    "millpond",
    // Of tests alone.
    "testkit",
    "mutants",
];

/// State machines and pure functions: nothing of the outside world, and the lint that keeps it so.
const PURE: [&str; 6] = ["wire", "store", "pg", "client", "placement", "health"];

/// What decides by what is kept in a registry, and has it written there: the same lint, and no way to the world but that.
const DECIDES: [&str; 1] = ["manager"];

/// Crates through which a program reaches the world, or the time.
const WORLD: [&str; 9] = ["tokio", "nix", "socket2", "io-uring", "libc", "hyper", "axum", "redb", "tonic"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

/// What a crate depends on, without what only its tests need.
fn dependencies(name: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap();
    let section = text.split("\n[dependencies]\n").nth(1).unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    names.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}

/// All that a crate links of this repository's and of others', as far as this repository's manifests tell.
fn linked(name: &str) -> BTreeSet<String> {
    let own = LAYERS;
    let (mut found, mut open) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(next) = open.pop() {
        for dependency in dependencies(&next) {
            if found.insert(dependency.clone()) && own.contains(&dependency.as_str()) {
                open.push(dependency);
            }
        }
    }
    found
}

#[test]
fn every_crate_has_its_layer_and_depends_on_lower_ones_only() {
    let own = LAYERS;
    let mut there: Vec<String> = fs::read_dir(root().join("crates"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    there.sort();
    let mut listed = own;
    listed.sort_unstable();
    assert_eq!(there, listed);
    for (layer, name) in own.iter().enumerate() {
        for dependency in dependencies(name) {
            if let Some(other) = own.iter().position(|other| *other == dependency) {
                assert!(other < layer, "{name} must not depend on {dependency}, which is above it");
            }
        }
    }
}

#[test]
fn what_is_pure_reaches_nothing_of_the_world() {
    let lint = fs::read_to_string(root().join(".config/pure.clippy.toml")).unwrap();
    let pure = PURE.map(|name| (name, linked(name)));
    let deciding = DECIDES.map(|name| (name, dependencies(name)));
    for (name, linked) in pure.into_iter().chain(deciding) {
        let reached: Vec<&&str> = WORLD.iter().filter(|one| linked.contains(**one)).collect();
        assert!(reached.is_empty(), "{name} links {reached:?}");
        let own = root().join("crates").join(name).join("clippy.toml");
        assert_eq!(fs::read_to_string(&own).unwrap(), lint, "{} is no link to the lint", own.display());
    }
}

#[test]
fn registries_are_linked_by_those_who_choose_one() {
    for name in ["client", "volume", "doors", "sim", "cluster", "manager", "api"] {
        let linked = linked(name);
        for registry in ["redb", "tonic"] {
            // What a feature for tests brings is no dependency of a program.
            let is_optional = name == "volume" || name == "doors";
            let is_linked = linked.contains(registry);
            assert!(!is_linked || is_optional && registry == "redb", "{name} links {registry}");
        }
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The folders and files right below a crate's `src`, and which of the others each uses. Tests may use any.
fn arrows(name: &str) -> BTreeMap<String, BTreeSet<String>> {
    let src = root().join("crates").join(name).join("src");
    let mut arrows: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in sources(&src) {
        let below = path.strip_prefix(&src).unwrap();
        let module = below.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if ["lib", "main", "testing", "tests"].contains(&module) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
        for used in lines.flat_map(|line| line.split("crate::").skip(1)) {
            let used: String = used.chars().take_while(|one| one.is_alphanumeric() || *one == '_').collect();
            let is_module = src.join(&used).is_dir() || src.join(format!("{used}.rs")).is_file();
            if is_module && used != module {
                arrows.entry(module.to_owned()).or_default().insert(used);
            }
        }
    }
    arrows
}

#[test]
fn no_folders_of_a_crate_depend_on_each_other_in_a_circle() {
    let has_circle = |name: &&str| {
        let mut arrows = arrows(name);
        // What depends on nothing any more goes, until nothing is left but circles.
        loop {
            let open: BTreeSet<String> = arrows.keys().cloned().collect();
            let before = arrows.len();
            arrows.retain(|_, used| used.iter().any(|one| open.contains(one)));
            if arrows.len() == before {
                break;
            }
        }
        !arrows.is_empty()
    };
    let found: Vec<&str> = LAYERS.into_iter().filter(has_circle).collect();
    assert!(found.is_empty(), "crates in which folders depend on each other in a circle: {found:?}");
}

/// What the types of a crate have, tests and what only they use excepted: the fields of each struct, and all methods of each
/// type. Types of one name count as one.
#[derive(Default)]
struct Sizes {
    fields: BTreeMap<String, usize>,
    methods: BTreeMap<String, usize>,
}

impl Sizes {
    fn count(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) if !is_test(&module.attrs) => {
                    self.count(module.content.as_ref().map_or(&[], |(_, items)| items));
                }
                Item::Struct(one) if !is_test(&one.attrs) => {
                    let fields = self.fields.entry(one.ident.to_string()).or_default();
                    *fields = one.fields.len().max(*fields);
                }
                Item::Impl(one) if !is_test(&one.attrs) => {
                    let syn::Type::Path(path) = &*one.self_ty else { continue };
                    let name = path.path.segments.last().unwrap().ident.to_string();
                    let methods = one.items.iter().filter(|item| matches!(item, ImplItem::Fn(_))).count();
                    *self.methods.entry(name).or_default() += methods;
                }
                _ => {}
            }
        }
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    let is_test = |one: &Attribute| one.parse_args::<syn::Ident>().is_ok_and(|what| what == "test");
    attributes.iter().any(|one| one.path().is_ident("cfg") && is_test(one))
}

fn parsed(path: &Path) -> Vec<Item> {
    syn::parse_file(&fs::read_to_string(path).unwrap()).unwrap().items
}

#[test]
fn no_type_of_pg_is_all_of_it() {
    let src = root().join("crates/pg/src");
    let mut sizes = Sizes::default();
    for path in sources(&src).iter().filter(|path| !path.ends_with("testing.rs")) {
        sizes.count(&parsed(path));
    }
    assert!(sizes.fields["Operation"] > 1 && sizes.methods["Context"] > 1, "they are counted");
    sizes.fields.retain(|_, fields| *fields > 15);
    assert!(sizes.fields.is_empty(), "structs with more than 15 fields: {:?}", sizes.fields);
    sizes.methods.retain(|_, methods| *methods > 30);
    assert!(sizes.methods.is_empty(), "types with more than 30 methods: {:?}", sizes.methods);
}

#[test]
fn pg_shows_a_few_of_its_modules() {
    let is_public = |visibility: &Visibility| matches!(visibility, Visibility::Public(_));
    let names = parsed(&root().join("crates/pg/src/lib.rs")).into_iter().filter_map(|item| match item {
        Item::Mod(module) if is_public(&module.vis) => Some(module.ident.to_string()),
        Item::Use(one) if is_public(&one.vis) => match one.tree {
            UseTree::Path(path) => Some(path.ident.to_string()),
            _ => panic!("what is shown of pg is named one by one"),
        },
        _ => None,
    });
    let names: BTreeSet<String> = names.collect();
    assert!(names.len() <= 6, "pg shows something of {} modules: {names:?}", names.len());
}

/// Every text that people read about the repository.
fn texts() -> Vec<PathBuf> {
    let folder = |path: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
    };
    let root = root();
    let docs = root.join("docs");
    [folder(&root), folder(&docs), folder(&docs.join("formats")), folder(&docs.join("decisions"))].concat()
}

#[test]
fn the_files_and_names_in_the_docs_exist() {
    let mut wrong = Vec::new();
    for text in texts() {
        let content = fs::read_to_string(&text).unwrap();
        for (number, line) in content.lines().enumerate() {
            let quoted: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
            for (index, path) in quoted.iter().enumerate().filter(|(_, one)| one.starts_with("crates/")) {
                let place = format!("{}:{}", text.display(), number + 1);
                let file = root().join(path);
                if !file.exists() {
                    wrong.push(format!("{place}: {path}"));
                    continue;
                }
                // "`name` in `file`": the name is one of that file.
                let Some(name) = index.checked_sub(1).map(|before| quoted[before]) else { continue };
                let says_in = line.contains(&format!("`{name}` in `{path}`"))
                    || line.contains(&format!("`{name}` (`{path}`"));
                if says_in && file.is_file() {
                    let code = fs::read_to_string(&file).unwrap();
                    let last = name.rsplit("::").next().unwrap();
                    if !code.contains(last) {
                        wrong.push(format!("{place}: {path} has no {last}"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
