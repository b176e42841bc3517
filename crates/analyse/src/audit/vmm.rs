//! What a VMM's command line says of its VM. QEMU's words, and of others what is alike.

use vmtax_events::Isa;
use vmtax_events::setting::{Fact, VmProcess};

use super::SeenSetting;
use crate::remedy::VmKind;

/// What kind of VM a process runs, by its command line.
pub fn kind(vm: &VmProcess) -> VmKind {
    if vm.arguments.value.is_err() {
        return VmKind::Unknown;
    }
    for object in options(vm, "object") {
        match object_type(object) {
            "tdx-guest" => return VmKind::Tdx,
            "sev-snp-guest" => return VmKind::Snp,
            "sev-guest" => return sev(property(object, "policy")),
            _ => {}
        }
    }
    // cloud-hypervisor.
    for platform in options(vm, "platform") {
        match property(platform, "tdx").or(property(platform, "sev_snp")) {
            Some("on") if platform.contains("tdx=on") => return VmKind::Tdx,
            Some("on") => return VmKind::Snp,
            _ => {}
        }
    }
    VmKind::Plain
}

/// Bit 2 of the policy asks for encrypted registers (QEMU qapi/qom.json, `SevGuestProperties`; AMD 55766, "Guest policy").
fn sev(policy: Option<&str>) -> VmKind {
    const ES: u32 = 1 << 2;
    let Some(policy) = policy else { return VmKind::Sev };
    let number = match policy.strip_prefix("0x").or(policy.strip_prefix("0X")) {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16),
        None => policy.parse(),
    };
    match number {
        Ok(bits) if bits & ES != 0 => VmKind::SevEs,
        Ok(_) => VmKind::Sev,
        Err(_) => VmKind::Unknown,
    }
}

/// The values of an option, given as `-NAME VALUE` or `--NAME VALUE`.
pub(super) fn options<'v>(vm: &'v VmProcess, name: &str) -> Vec<&'v str> {
    let words = vm.arguments.value.as_deref().unwrap_or_default();
    let is_it = |word: &str| {
        word.strip_prefix('-').map(|w| w.strip_prefix('-').unwrap_or(w)).is_some_and(|w| w == name)
    };
    words.windows(2).filter(|pair| is_it(&pair[0])).map(|pair| pair[1].as_str()).collect()
}

/// The first word of an object or device: its type. In JSON it is a field.
pub(super) fn object_type(value: &str) -> &str {
    if value.trim_start().starts_with('{') {
        return json(value, "qom-type").or_else(|| json(value, "driver")).unwrap_or_default();
    }
    let first = value.split(',').next().unwrap_or_default();
    first.strip_prefix("driver=").unwrap_or(first)
}

/// The value of a property: `NAME=VALUE` among commas, or a field of JSON.
pub(super) fn property<'t>(value: &'t str, name: &str) -> Option<&'t str> {
    if value.trim_start().starts_with('{') {
        return json(value, name);
    }
    let of = |part: &'t str| part.strip_prefix(name)?.strip_prefix('=');
    value.split(',').find_map(of)
}

/// A plain field of a JSON object as libvirt writes it: `"name":"value"` or `"name":true`.
fn json<'t>(value: &'t str, name: &str) -> Option<&'t str> {
    let quoted = format!("\"{name}\"");
    let at = value.find(&quoted)?;
    let rest = value[at + quoted.len()..].trim_start().strip_prefix(':')?.trim_start();
    match rest.strip_prefix('"') {
        Some(text) => text.split_once('"').map(|(text, _)| text),
        None => rest.split([',', '}']).next().map(str::trim),
    }
}

/// Words of QEMU's command line that only Windows guests are given: Hyper-V's enlightenments, and its clock.
pub(super) fn is_windows(vm: &VmProcess) -> bool {
    let is_enlightened = |value: &&str| {
        value.split(',').any(|word| word.starts_with("hv-") || word.starts_with("hv_"))
    };
    options(vm, "cpu").iter().any(is_enlightened)
}

/// A switch as QEMU takes it.
pub(super) fn is_on(value: &str) -> bool {
    matches!(value, "on" | "yes" | "true" | "y" | "1")
}

pub(super) fn is_off(value: &str) -> bool {
    matches!(value, "off" | "no" | "false" | "n" | "0")
}

/// What of the command line a verdict rests on.
pub(super) fn said(vm: &VmProcess, what: impl Into<SeenSetting>) -> Fact<SeenSetting> {
    Fact::new(
        vm.arguments.path.clone(),
        vm.arguments.value.as_ref().map(|_| what.into()).map_err(Clone::clone),
    )
}

/// The ISA of the VM, where the name of the VMM's program says it.
pub(super) fn isa(vm: &VmProcess) -> Option<Isa> {
    let words = vm.arguments.value.as_deref().ok()?;
    words.first()?.ends_with("qemu-system-aarch64").then_some(Isa::Arm)
}

/// It is QEMU's command line, so an option that is absent has QEMU's default.
pub(super) fn is_qemu(vm: &VmProcess) -> bool {
    let words = vm.arguments.value.as_deref().unwrap_or_default();
    let program = words.first().map(String::as_str).unwrap_or_default();
    let name = program.rsplit('/').next().unwrap_or_default();
    name.starts_with("qemu") || name == "kvm"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_of_sev_tells_whether_registers_are_encrypted() {
        for (policy, kind) in [
            (None, VmKind::Sev),
            (Some("0x1"), VmKind::Sev),
            (Some("0x5"), VmKind::SevEs),
            (Some("7"), VmKind::SevEs),
            (Some("3"), VmKind::Sev),
            (Some("0x"), VmKind::Unknown),
            (Some("-4"), VmKind::Unknown),
        ] {
            assert_eq!(sev(policy), kind, "{policy:?}");
        }
    }

    #[test]
    fn properties_are_read_in_both_spellings() {
        for (value, expected) in [
            ("tap,id=n0,vhost=on", Some("on")),
            ("tap,vhost=off,id=n0", Some("off")),
            (r#"{"type":"tap","vhost":true,"id":"n0"}"#, Some("true")),
            (r#"{"type":"tap", "vhost" : "on"}"#, Some("on")),
            (r#"{"type":"tap","vhost":true}"#, Some("true")),
            ("tap,vhostfd=3", None),
            (r#"{"vhost"#, None),
            ("", None),
        ] {
            assert_eq!(property(value, "vhost"), expected, "{value}");
        }
        assert_eq!(object_type(r#"{"qom-type":"tdx-guest","id":"t"}"#), "tdx-guest");
        assert_eq!(object_type(r#"{"driver":"virtio-net-pci"}"#), "virtio-net-pci");
        assert_eq!(object_type("sev-snp-guest,id=s"), "sev-snp-guest");
    }
}
