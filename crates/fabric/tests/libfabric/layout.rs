//! The declared interface of libfabric, compared with the installed headers by a C program.

use std::fmt::Write;
use std::process::Command;

use farbank_fabric::libfabric::{constants, layouts};

#[test]
fn declared_structures_and_constants_are_those_of_the_headers() {
    let mut program = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in [
        "fabric",
        "fi_atomic",
        "fi_cm",
        "fi_domain",
        "fi_endpoint",
        "fi_eq",
        "fi_errno",
        "fi_rma",
    ] {
        writeln!(program, "#include <rdma/{header}.h>").unwrap();
    }
    program.push_str("int main(void) {\n");
    let mut expected = Vec::new();
    for layout in layouts() {
        let (structure, field) = (layout.structure, layout.field);
        writeln!(
            program,
            "printf(\"%zu\\n\", offsetof({structure}, {field}));"
        )
        .unwrap();
        expected.push((
            format!("offset of {field} in {structure}"),
            layout.offset as u64,
        ));
    }
    for (name, value) in constants() {
        writeln!(
            program,
            "printf(\"%llu\\n\", (unsigned long long)({name}));"
        )
        .unwrap();
        expected.push((name.into(), value));
    }
    program.push_str("return 0;\n}\n");
    let folder = tempfile::tempdir().unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiled = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .status();
    assert!(
        compiled.unwrap().success(),
        "the headers of libfabric-dev are needed"
    );
    let printed = Command::new(&binary).output().unwrap();
    let printed = String::from_utf8(printed.stdout).unwrap();
    let found: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(found.len(), expected.len());
    for ((name, expected), found) in expected.iter().zip(found) {
        assert_eq!(found, *expected, "{name}");
    }
}
