//! `cargo xtask dependencies`: checks the workspace's dependencies against `deny.toml`, and lists them for a release.
//!
//! It checks those rules of cargo-deny that need no network: banned crates (with the crates that may use them),
//! licences and sources. Building cargo-deny takes minutes; this check takes a second.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::iter::Peekable;

use serde_json::{Value, json};

use crate::run::{cargo_command, root};

/// The platform that is released.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// A package of `cargo metadata`.
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
    /// Ids of the packages that it uses, and whether the released program includes that use.
    uses: Vec<(String, bool)>,
}

/// Packages by id.
type Graph = BTreeMap<String, Package>;

pub(crate) fn check() -> Result<(), String> {
    let graph = graph(&metadata()?)?;
    let rules = Rules::read(&read("deny.toml")?)?;
    let wrong = rules.objections(&graph);
    for line in &wrong {
        println!("{line}");
    }
    match wrong.len() {
        0 => {
            println!("all {} packages satisfy deny.toml", graph.len());
            Ok(())
        }
        n => Err(format!("deny.toml: {n} violations")),
    }
}

fn read(file: &str) -> Result<String, String> {
    fs::read_to_string(root().join(file)).map_err(|e| format!("{file}: {e}"))
}

fn metadata() -> Result<Value, String> {
    let mut command = cargo_command();
    command.args(["metadata", "--locked", "--format-version", "1"]);
    command.args(["--filter-platform", PLATFORM]);
    let output = command.output();
    let output = output.map_err(|e| format!("cargo metadata: {e}"))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata: {complaint}"));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// Returns the packages that `cargo metadata` resolved.
fn graph(metadata: &Value) -> Result<Graph, String> {
    let mut uses: BTreeMap<String, Vec<(String, bool)>> = BTreeMap::new();
    for node in list(&metadata["resolve"]["nodes"]) {
        let id = text(&node["id"]).ok_or("a package without an id")?;
        let used = list(&node["deps"]).iter().filter_map(|dep| {
            let released = list(&dep["dep_kinds"])
                .iter()
                .any(|kind| kind["kind"] != "dev");
            Some((text(&dep["pkg"])?, released))
        });
        uses.insert(id, used.collect());
    }
    let mut graph = Graph::new();
    for package in list(&metadata["packages"]) {
        let field = |name: &str| text(&package[name]).ok_or(format!("a package without {name}"));
        let id = field("id")?;
        if let Some(uses) = uses.remove(&id) {
            let package = Package {
                name: field("name")?,
                version: field("version")?,
                license: text(&package["license"]),
                source: text(&package["source"]),
                uses,
            };
            graph.insert(id, package);
        }
    }
    Ok(graph)
}

/// The rules of `deny.toml`.
struct Rules {
    licenses: BTreeSet<String>,
    /// Further licences that one crate may have.
    exceptions: BTreeMap<String, BTreeSet<String>>,
    /// Banned crates, and the crates that may use them.
    banned: BTreeMap<String, BTreeSet<String>>,
}

fn strings(value: Option<&toml::Value>) -> BTreeSet<String> {
    let values = value.and_then(toml::Value::as_array).into_iter().flatten();
    values
        .filter_map(|value| value.as_str().map(str::to_owned))
        .collect()
}

impl Rules {
    fn read(deny: &str) -> Result<Rules, String> {
        let table: toml::Table = deny.parse().map_err(|e| format!("deny.toml: {e}"))?;
        let section = |name: &str| {
            let section = table.get(name).and_then(toml::Value::as_table);
            section.ok_or(format!("deny.toml has no [{name}]"))
        };
        let mut banned = BTreeMap::new();
        let bans = section("bans")?.get("deny").and_then(toml::Value::as_array);
        for ban in bans.ok_or("deny.toml has no list bans.deny")? {
            let name = ban.get("name").and_then(toml::Value::as_str);
            let name = name.ok_or("deny.toml: a ban without a name")?;
            banned.insert(name.to_owned(), strings(ban.get("wrappers")));
        }
        let section = section("licenses")?;
        let licenses = strings(section.get("allow"));
        let mut exceptions = BTreeMap::new();
        let listed = section.get("exceptions").and_then(toml::Value::as_array);
        for exception in listed.into_iter().flatten() {
            let name = exception.get("crate").and_then(toml::Value::as_str);
            let name = name.ok_or("deny.toml: an exception without a crate")?;
            exceptions.insert(name.to_owned(), strings(exception.get("allow")));
        }
        Ok(Rules {
            licenses,
            exceptions,
            banned,
        })
    }

    /// Returns one line for each rule that a package violates.
    fn objections(&self, graph: &Graph) -> Vec<String> {
        let mut wrong = Vec::new();
        for package in graph.values() {
            let named = format!("{} {}", package.name, package.version);
            if package.source.as_deref().is_some_and(|s| s != REGISTRY) {
                wrong.push(format!("{named} is not from crates.io"));
            }
            match &package.license {
                None => wrong.push(format!("{named} has no licence")),
                Some(license) if !self.allows(license) && !self.excepts(&package.name, license) => {
                    wrong.push(format!("{named}: deny.toml does not allow {license}"));
                }
                Some(_) => {}
            }
            for (used, _) in &package.uses {
                let used = graph.get(used).map_or("", |used| &used.name);
                let banned = self.banned.get(used);
                if banned.is_some_and(|wrappers| !wrappers.contains(&package.name)) {
                    wrong.push(format!("{named} uses {used}, which deny.toml bans"));
                }
            }
        }
        wrong
    }

    /// Returns whether `crate_name` may have this licence although other crates may not.
    fn excepts(&self, crate_name: &str, license: &str) -> bool {
        let allowed = self.exceptions.get(crate_name);
        allowed.is_some_and(|allowed| allowed.contains(license))
    }

    /// Returns whether the allowed licences satisfy an SPDX expression.
    fn allows(&self, expression: &str) -> bool {
        let spaced = expression
            .replace('(', " ( ")
            .replace(')', " ) ")
            .replace('/', " OR ");
        let mut words = spaced.split_whitespace().peekable();
        let met = self.any(&mut words);
        met && words.next().is_none()
    }

    fn any<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut met = self.every(words);
        while words.next_if_eq(&"OR").is_some() {
            met |= self.every(words);
        }
        met
    }

    fn every<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut met = self.one(words);
        while words.next_if_eq(&"AND").is_some() {
            met &= self.one(words);
        }
        met
    }

    fn one<'a>(&self, words: &mut Peekable<impl Iterator<Item = &'a str>>) -> bool {
        if words.next_if_eq(&"(").is_some() {
            let met = self.any(words);
            return words.next() == Some(")") && met;
        }
        let Some(license) = words.next() else {
            return false;
        };
        match words.next_if_eq(&"WITH").and_then(|_| words.next()) {
            Some(exception) => self
                .licenses
                .contains(&format!("{license} WITH {exception}")),
            None => self.licenses.contains(license),
        }
    }
}

/// Returns the checksums of `Cargo.lock`, by name and version.
fn checksums() -> Result<BTreeMap<(String, String), String>, String> {
    let lock: toml::Table = read("Cargo.lock")?
        .parse()
        .map_err(|e| format!("Cargo.lock: {e}"))?;
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let sums = packages.into_iter().flatten().filter_map(|package| {
        let field = |name| package.get(name)?.as_str().map(str::to_owned);
        Some(((field("name")?, field("version")?), field("checksum")?))
    });
    Ok(sums.collect())
}

/// Returns the list of the program's components, as CycloneDX 1.5. The same `Cargo.lock` always gives the same list: it
/// contains no time and no random number.
pub(crate) fn sbom() -> Result<String, String> {
    let (graph, sums) = (graph(&metadata()?)?, checksums()?);
    let program = graph.iter().find(|(_, p)| p.name == "farbank-cli");
    let (id, program) = program.ok_or("there is no farbank-cli")?;
    let mut reached = BTreeSet::new();
    let mut next = vec![id.as_str()];
    while let Some(id) = next.pop() {
        if reached.insert(id)
            && let Some(package) = graph.get(id)
        {
            let released = package.uses.iter().filter(|(_, released)| *released);
            next.extend(released.map(|(used, _)| used.as_str()));
        }
    }
    let (mut components, mut dependencies) = (Vec::new(), Vec::new());
    for (_, package) in graph.iter().filter(|(id, _)| reached.contains(id.as_str())) {
        let uses = package.uses.iter().filter(|(_, released)| *released);
        let mut uses: Vec<String> = uses
            .filter_map(|(used, _)| graph.get(used).map(Package::url))
            .collect();
        uses.sort();
        dependencies.push(json!({ "ref": package.url(), "dependsOn": uses }));
        if package.name != program.name {
            components.push(package.component("library", &sums));
        }
    }
    let list = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": program.component("application", &sums) },
        "components": components,
        "dependencies": dependencies,
    });
    serde_json::to_string_pretty(&list).map_err(|e| e.to_string())
}

impl Package {
    /// Returns the package's URL in the list.
    fn url(&self) -> String {
        format!("pkg:cargo/{}@{}", self.name, self.version)
    }

    fn component(&self, kind: &str, sums: &BTreeMap<(String, String), String>) -> Value {
        let mut component = json!({
            "type": kind,
            "bom-ref": self.url(),
            "name": self.name,
            "version": self.version,
            "purl": self.url(),
        });
        if let Some(license) = &self.license {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        if let Some(sum) = sums.get(&(self.name.clone(), self.version.clone())) {
            component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
        }
        component
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENY: &str = r#"
        [licenses]
        allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        exceptions = [{ crate = "secret", allow = ["BSD-3-Clause"] }]
        [bans]
        deny = [{ name = "tokio" }, { name = "memmap2", wrappers = ["perf"] }]
    "#;

    fn rules() -> Rules {
        Rules::read(DENY).unwrap()
    }

    #[test]
    fn licence_expressions_follow_spdx() {
        for (expression, met) in [
            ("MIT", true),
            ("ISC", false),
            ("MIT OR ISC", true),
            ("ISC/MIT", true),
            ("MIT AND ISC", false),
            ("MIT AND (ISC OR Apache-2.0)", true),
            ("(MIT OR ISC) AND Unicode-3.0", false),
            ("ISC OR MIT AND Apache-2.0", true),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("MIT WITH LLVM-exception", false),
            ("(MIT", false),
            ("MIT MIT", false),
            ("", false),
        ] {
            assert_eq!(rules().allows(expression), met, "{expression:?}");
        }
    }

    fn package(id: &str, uses: &[&str]) -> (Value, Value) {
        let deps: Vec<Value> = uses
            .iter()
            .map(|used| json!({ "pkg": used, "dep_kinds": [{ "kind": null }] }))
            .collect();
        let package = json!({
            "id": id, "name": id, "version": "1.0.0", "license": "MIT", "source": REGISTRY,
        });
        (package, json!({ "id": id, "deps": deps }))
    }

    fn objections(packages: &[(Value, Value)]) -> Vec<String> {
        let (packages, nodes): (Vec<_>, Vec<_>) = packages.iter().cloned().unzip();
        let metadata = json!({ "packages": packages, "resolve": { "nodes": nodes } });
        rules().objections(&graph(&metadata).unwrap())
    }

    #[test]
    fn a_banned_crate_is_found_unless_an_allowed_crate_uses_it() {
        let fine = [package("ours", &["perf"]), package("perf", &["memmap2"])];
        let memmap = package("memmap2", &[]);
        assert_eq!(
            objections(&[fine[0].clone(), fine[1].clone(), memmap.clone()]),
            [""; 0]
        );
        let direct = [package("ours", &["memmap2"]), memmap];
        assert_eq!(objections(&direct).len(), 1);
        let runtime = [package("ours", &["tokio"]), package("tokio", &[])];
        assert_eq!(objections(&runtime).len(), 1);
    }

    #[test]
    fn an_exception_is_for_one_crate_and_one_licence() {
        for (name, license, problems) in [
            ("secret", "BSD-3-Clause", 0),
            ("secret", "BSD-2-Clause", 1),
            ("other", "BSD-3-Clause", 1),
        ] {
            let (mut crate_of, node) = package(name, &[]);
            crate_of["license"] = license.into();
            assert_eq!(
                objections(&[(crate_of, node)]).len(),
                problems,
                "{name} {license}"
            );
        }
    }

    #[test]
    fn a_crate_from_elsewhere_or_without_a_licence_is_found() {
        let (mut stranger, node) = package("stranger", &[]);
        stranger["source"] = "git+https://example.org/x".into();
        stranger["license"] = Value::Null;
        assert_eq!(objections(&[(stranger, node)]).len(), 2);
    }

    #[test]
    fn the_workspace_satisfies_deny_toml() {
        check().unwrap();
    }
}
