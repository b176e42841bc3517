//! The kernel's type information: offsets of struct members, and numbers of arguments of tracepoints.
//!
//! The format is in the kernel's `Documentation/bpf/btf.rst`. A module's description continues where the kernel's ends: its
//! type numbers and its names count from there. Input is the kernel's own, and is checked all the same.

/// `BTF_KIND_*` that matter here.
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const ENUM64: u32 = 19;
const INT: u32 = 1;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const POINTER: u32 = 2;

/// Structs in structs, and typedefs of typedefs, are followed so far.
const DEEPEST: u32 = 32;

/// One description: of the kernel, or of a module on top of it.
pub(crate) struct Types<'a> {
    base: Option<&'a Types<'a>>,
    /// Number of the first type here, and length of the names before these.
    first: u32,
    names_before: u32,
    names: &'a [u8],
    types: Vec<BtfType<'a>>,
}

#[derive(Clone, Copy)]
struct BtfType<'a> {
    name: u32,
    kind: u32,
    /// Members or parameters.
    count: u32,
    has_bit_fields: bool,
    /// Size, or the number of the type that it refers to.
    refers: u32,
    rest: &'a [u8],
}

impl<'a> Types<'a> {
    /// Reads a description; `base` is the kernel's when it is a module's.
    pub(crate) fn parse(bytes: &'a [u8], base: Option<&'a Types<'a>>) -> Result<Types<'a>, String> {
        let short = || "its type information is cut short".to_owned();
        if bytes.get(..2) != Some(&[0x9f, 0xeb]) {
            return Err("is no type information (BTF) of this byte order".to_owned());
        }
        let header = |at| word(bytes, at).ok_or_else(short);
        let part = |offset: u32, length: u32| {
            let start = (header(4)? as usize).checked_add(offset as usize).ok_or_else(short)?;
            let end = start.checked_add(length as usize).ok_or_else(short)?;
            bytes.get(start..end).ok_or_else(short)
        };
        let mut rest = part(header(8)?, header(12)?)?;
        let names = part(header(16)?, header(20)?)?;
        let mut types = Vec::new();
        while !rest.is_empty() {
            let (one, after) = BtfType::split(rest).ok_or_else(short)?;
            types.push(one);
            rest = after;
        }
        let (first, names_before) = base.map_or((1, 0), |base| {
            (base.first + base.types.len() as u32, base.names_before + base.names.len() as u32)
        });
        Ok(Types { base, first, names_before, names, types })
    }

    /// The same without a base, to be looked through beside modules.
    pub(crate) fn on_its_own(&self) -> Types<'a> {
        Types { base: None, types: self.types.clone(), ..*self }
    }

    /// Bytes from the start of a struct to a member: `("vcpu_vmx", "vt.exit_reason")`.
    pub(crate) fn offset(&self, name: &str, path: &str) -> Option<u32> {
        let mut of = self.find(STRUCT, name)?;
        let mut offset = 0;
        for member in path.split('.') {
            let (at, is) = self.member(of, member, DEEPEST)?;
            offset += at;
            of = is;
        }
        Some(offset)
    }

    /// How many arguments a tracepoint has.
    pub(crate) fn arguments(&self, tracepoint: &str) -> Option<u32> {
        let typedef = self.find(TYPEDEF, &format!("btf_trace_{tracepoint}"))?;
        let pointer = self.get(typedef.refers)?;
        let function = self.get(pointer.refers)?;
        // The first is what was registered with the probe.
        (pointer.kind == POINTER && function.kind == FUNC_PROTO)
            .then(|| function.count.saturating_sub(1))
    }

    /// The value of an enumerator.
    pub(crate) fn enumerator(&self, name: &str) -> Option<u32> {
        let of = |of: &BtfType<'a>| {
            let mut values = of.rest.chunks_exact(8);
            let found = values.find(|value| {
                word(value, 0).and_then(|at| self.name(at)) == Some(name.as_bytes())
            })?;
            word(found, 4)
        };
        self.types.iter().filter(|one| one.kind == ENUM).find_map(of)
    }

    fn find(&self, kind: u32, name: &str) -> Option<BtfType<'a>> {
        let found = self
            .types
            .iter()
            .find(|t| t.kind == kind && self.name(t.name) == Some(name.as_bytes()));
        found.copied().or_else(|| self.base?.find(kind, name))
    }

    fn get(&self, number: u32) -> Option<BtfType<'a>> {
        match number.checked_sub(self.first) {
            Some(at) => self.types.get(at as usize).copied(),
            None => self.base?.get(number),
        }
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        let Some(at) = at.checked_sub(self.names_before) else { return self.base?.name(at) };
        let rest = self.names.get(at as usize..)?;
        rest.split(|&byte| byte == 0).next()
    }

    /// A member's offset and type; members of members without a name are the struct's own.
    fn member(&self, of: BtfType<'a>, name: &str, depth: u32) -> Option<(u32, BtfType<'a>)> {
        let depth = depth.checked_sub(1)?;
        for member in of.rest.chunks_exact(12) {
            let [at, is, bits] = [0, 4, 8].map(|at| word(member, at).unwrap_or_default());
            let bits = if of.has_bit_fields { bits & 0xff_ffff } else { bits };
            let found = self.name(at)?;
            if found == name.as_bytes() {
                return Some((bits / 8, self.plain(is)?));
            }
            if found.is_empty()
                && let Some(inner) = self.plain(is).filter(|t| matches!(t.kind, STRUCT | UNION))
                && let Some((offset, is)) = self.member(inner, name, depth)
            {
                return Some((bits / 8 + offset, is));
            }
        }
        None
    }

    /// A type without the names and qualifiers around it.
    fn plain(&self, number: u32) -> Option<BtfType<'a>> {
        let mut found = self.get(number)?;
        for _ in 0..DEEPEST {
            if !matches!(found.kind, TYPEDEF | VOLATILE | CONST | RESTRICT) {
                return Some(found);
            }
            found = self.get(found.refers)?;
        }
        None
    }
}

impl<'a> BtfType<'a> {
    /// The first type and what follows it.
    fn split(bytes: &'a [u8]) -> Option<(BtfType<'a>, &'a [u8])> {
        let [name, info, refers] = [word(bytes, 0)?, word(bytes, 4)?, word(bytes, 8)?];
        let (kind, count) = (info >> 24 & 0x1f, info & 0xffff);
        let rest = match kind {
            INT | VAR | DECL_TAG => 4,
            ARRAY => 12,
            STRUCT | UNION | DATASEC | ENUM64 => 12 * count as usize,
            ENUM | FUNC_PROTO => 8 * count as usize,
            _ => 0,
        };
        let after = bytes.get(12..)?;
        let one = BtfType {
            name,
            kind,
            count,
            has_bit_fields: info >> 31 != 0,
            refers,
            rest: after.get(..rest)?,
        };
        Some((one, &after[rest..]))
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types and names; `first` is the length of the names before.
    #[derive(Default)]
    struct BtfDescription {
        types: Vec<u8>,
        names: Vec<u8>,
        before: u32,
    }

    impl BtfDescription {
        fn name(&mut self, name: &str) -> u32 {
            let at = self.before + self.names.len() as u32;
            self.names.extend(name.bytes().chain([0]));
            at
        }

        fn push(&mut self, name: u32, kind: u32, count: u32, refers: u32, rest: &[u32]) {
            for number in [name, kind << 24 | count, refers].iter().chain(rest) {
                self.types.extend(number.to_le_bytes());
            }
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0x9f, 0xeb, 1, 0];
            let (types, names) = (self.types.len() as u32, self.names.len() as u32);
            for number in [24, 0, types, types, names] {
                bytes.extend(u32::to_le_bytes(number));
            }
            [bytes, self.types.clone(), self.names.clone()].concat()
        }
    }

    fn kernel() -> Vec<u8> {
        let mut d = BtfDescription::default();
        let nothing = d.name("");
        let int = d.name("int");
        d.push(int, INT, 0, 4, &[32]); // 1
        let (number, alias) = (d.name("number"), d.name("alias"));
        d.push(nothing, UNION, 1, 4, &[number, 1, 0]); // 2
        d.push(alias, TYPEDEF, 0, 2, &[]); // 3
        let (vcpu, id) = (d.name("kvm_vcpu"), d.name("vcpu_id"));
        d.push(vcpu, STRUCT, 2, 16, &[id, 1, 32, nothing, 3, 64]); // 4
        d.bytes()
    }

    #[test]
    fn members_are_found_through_names_and_without() {
        let bytes = kernel();
        let types = Types::parse(&bytes, None).unwrap();
        assert_eq!(types.offset("kvm_vcpu", "vcpu_id"), Some(4));
        assert_eq!(types.offset("kvm_vcpu", "number"), Some(8));
        assert_eq!(types.offset("kvm_vcpu", "number.more"), None);
        assert_eq!(types.offset("kvm_vcpu", "other"), None);
        assert_eq!(types.offset("int", "vcpu_id"), None);
    }

    #[test]
    fn enumerators_have_values() {
        let mut d = BtfDescription::default();
        let int = d.name("int");
        d.push(int, INT, 0, 4, &[32]); // 1
        let (registers, first, second) = (d.name("vcpu_sysreg"), d.name("MPIDR"), d.name("HCR"));
        d.push(registers, ENUM, 2, 4, &[first, 1, second, 134]); // 2
        let bytes = d.bytes();
        let types = Types::parse(&bytes, None).unwrap();
        let values = ["MPIDR", "HCR", "int"].map(|name| types.enumerator(name));
        assert_eq!(values, [Some(1), Some(134), None]);
    }

    #[test]
    fn a_module_goes_on_where_the_kernel_ends() {
        let base = kernel();
        let base = Types::parse(&base, None).unwrap();
        let mut d = BtfDescription { before: base.names.len() as u32, ..BtfDescription::default() };
        let (vcpu, svm, vmcb) = (d.name("vcpu"), d.name("vcpu_svm"), d.name("vmcb"));
        d.push(svm, STRUCT, 2, 24, &[vcpu, 4, 0, vmcb, 1, 128]); // 5
        d.push(0, POINTER, 0, 7, &[]); // 6
        d.push(0, FUNC_PROTO, 3, 0, &[0, 6, 0, 6, 0, 1]); // 7
        let trace = d.name("btf_trace_kvm_exit");
        d.push(trace, TYPEDEF, 0, 6, &[]); // 8
        let bytes = d.bytes();
        let types = Types::parse(&bytes, Some(&base)).unwrap();
        assert_eq!(types.offset("vcpu_svm", "vmcb"), Some(16));
        assert_eq!(types.offset("vcpu_svm", "vcpu.number"), Some(8));
        assert_eq!(types.offset("kvm_vcpu", "vcpu_id"), Some(4));
        assert_eq!((types.arguments("kvm_exit"), types.arguments("kvm_entry")), (Some(2), None));
    }

    #[test]
    fn damage_is_an_error_or_finds_nothing() {
        let whole = kernel();
        assert!(Types::parse(b"\x7fELF", None).is_err());
        for length in 0..whole.len() {
            assert!(Types::parse(&whole[..length], None).is_err(), "{length}");
        }
        for at in 4..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0xff;
            if let Ok(types) = Types::parse(&bytes, None) {
                let _ = (types.offset("kvm_vcpu", "number"), types.arguments("kvm_exit"));
            }
        }
    }
}
