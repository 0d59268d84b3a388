//! Short names of products, the same from `pci.ids` and from a driver: `GeForce RTX 5070` and `NVIDIA-GeForce-RTX-5070` are
//! `rtx5070`. `docs/reference/probe.md` documents the rules.

/// Words that say nothing beyond the vendor or the kind of device.
const FILLERS: [&str; 13] = [
    "nvidia",
    "tesla",
    "geforce",
    "grid",
    "amd",
    "instinct",
    "intel",
    "data",
    "center",
    "gpu",
    "edition",
    "generation",
    "hgx",
];
/// Marks of devices that are not a product.
const NO_PRODUCT: [&str; 6] = ["engineering sample", "reserved", "int sku", "dev id", "devid", " graphics"];
/// Kinds of memory.
const MEMORY_KINDS: [&str; 8] = ["hbm2", "hbm2e", "hbm3", "hbm3e", "gddr5", "gddr6", "gddr6x", "gddr7"];
/// Families that are written together with their number.
const FAMILIES: [&str; 4] = ["rtx", "gtx", "gt", "rx"];
/// What is written together with the number before it.
const GRADES: [&str; 3] = ["ti", "xt", "xtx"];
/// Forms in which one product is sold.
const FORMS: [&str; 4] = ["sxm", "pcie", "nvl", "cnx"];

/// The short name of a product, such as `rtx5070` or `h100-sxm`; `None` if the text names no product or more than one.
///
/// # Guarantees
/// It is never empty, and has only lower-case letters, digits, `.` and `-`. It begins and ends with a letter or a digit.
pub fn short_name(product: &str) -> Option<String> {
    let words = words(product)?;
    let mut name = String::new();
    let mut before = "";
    for word in &words {
        let starts_with_digit = word.starts_with(|c: char| c.is_ascii_digit());
        let ends_with_digit = before.ends_with(|c: char| c.is_ascii_digit());
        let glued = (FAMILIES.contains(&before) && starts_with_digit) || (GRADES.contains(&&**word) && ends_with_digit);
        if !name.is_empty() && !glued {
            name.push('-');
        }
        name.push_str(word);
        before = word;
    }
    (!name.is_empty()).then_some(name)
}

/// The memory that a product's name states, in MiB: `24GB` is 24 GiB, as in vendors' data sheets. `None` if it states none, or
/// several sizes, or is the name of several products.
pub fn stated_memory_mib(product: &str) -> Option<u64> {
    let mut sizes = split(product).filter_map(|word| gigabytes(&word));
    let size = sizes.next()?;
    (sizes.next().is_none() && !product.contains('/')).then_some(size * 1024)
}

/// Whether two short names can be of the same product: the names are equal, or differ only in a form that one of them leaves out.
pub(super) fn agree(one: &str, other: &str) -> bool {
    let form = |name: &str| name.split('-').find(|word| FORMS.contains(word)).map(str::to_owned);
    let rest = |name: &str| name.split('-').filter(|word| !FORMS.contains(word)).collect::<Vec<_>>().join("-");
    let forms_agree = match (form(one), form(other)) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    forms_agree && rest(one) == rest(other)
}

/// The words that make the name; `None` if it is not the name of one product.
fn words(product: &str) -> Option<Vec<String>> {
    let lower = product.to_ascii_lowercase();
    if NO_PRODUCT.iter().any(|mark| lower.contains(mark)) {
        return None;
    }
    // Two names of one laptop GPU.
    let lower = lower.replace("max-q / mobile", "mobile").replace("mobile / max-q", "mobile");
    // Drivers do not tell whether a GPU is limited for mining.
    let lower = lower.replace(" lite hash rate", "");
    let mut words: Vec<String> = Vec::new();
    let all: Vec<String> = split(&lower).collect();
    for (at, word) in all.iter().enumerate() {
        if !word.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'.') {
            return None;
        }
        let next = all.get(at + 1).map(String::as_str);
        let is_brand = word == "radeon" && matches!(next, Some("rx" | "pro" | "instinct"));
        let word = match word.as_str() {
            "mobile" => "laptop",
            "sxm2" | "sxm3" | "sxm4" | "sxm5" | "sxm6" => "sxm",
            word => word,
        };
        let is_dropped = FILLERS.contains(&word) || MEMORY_KINDS.contains(&word) || is_brand;
        if !is_dropped && gigabytes(word).is_none() {
            words.push(word.trim_matches('.').to_owned());
        }
    }
    if words.last().is_some_and(|word| matches!(word.as_str(), "vf" | "mxgpu" | "shared")) {
        words.pop();
    }
    words.retain(|word| !word.is_empty());
    Some(words)
}

fn split(product: &str) -> impl Iterator<Item = String> {
    product.split([' ', '-', '_']).filter(|word| !word.is_empty()).map(str::to_ascii_lowercase)
}

/// `80gb` or `144g` as a number.
fn gigabytes(word: &str) -> Option<u64> {
    let number = word.strip_suffix("gb").or_else(|| word.strip_suffix('g'))?;
    let is_size = number.len() <= 4 && number.bytes().all(|c| c.is_ascii_digit());
    number.parse().ok().filter(|size| is_size && *size > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pci_ids_and_of_drivers_become_the_same_short_name() {
        for (product, short) in [
            ("GeForce RTX 5070", "rtx5070"),
            ("NVIDIA-GeForce-RTX-5070", "rtx5070"),
            ("GeForce RTX 5070 Ti", "rtx5070ti"),
            ("GeForce RTX 4070 Ti SUPER", "rtx4070ti-super"),
            ("GeForce RTX 5090 Max-Q / Mobile", "rtx5090-laptop"),
            ("NVIDIA-GeForce-RTX-5090-Laptop-GPU", "rtx5090-laptop"),
            ("GeForce RTX 3080 12GB", "rtx3080"),
            ("H100 SXM5 80GB", "h100-sxm"),
            ("NVIDIA-H100-80GB-HBM3", "h100"),
            ("A100 PCIe 40GB", "a100-pcie"),
            ("NVIDIA-A100-PCIE-40GB", "a100-pcie"),
            ("H200 NVL", "h200-nvl"),
            ("Tesla T4", "t4"),
            ("GeForce RTX 3060 Lite Hash Rate", "rtx3060"),
            ("Tesla V100 SXM2 16GB", "v100-sxm"),
            ("L40S", "l40s"),
            ("HGX GB200", "gb200"),
            ("Quadro RTX 5000", "quadro-rtx5000"),
            ("RTX 6000 Ada Generation", "rtx6000-ada"),
            ("NVIDIA-RTX-6000-Ada-Generation", "rtx6000-ada"),
            ("RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-blackwell-server"),
            ("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition", "rtx-pro-6000-blackwell-server"),
            ("Instinct MI300X", "mi300x"),
            ("Instinct MI300X VF", "mi300x"),
            ("Radeon RX 7600", "rx7600"),
            ("Radeon VII", "radeon-vii"),
            ("Data Center GPU Max 1550", "max-1550"),
            ("Arc A770", "arc-a770"),
            ("NVIDIA-A10-SHARED", "a10"),
        ] {
            assert_eq!(short_name(product).as_deref(), Some(short), "{product}");
        }
    }

    #[test]
    fn what_names_no_product_or_several_has_no_short_name() {
        for product in [
            "",
            " - ",
            "Reserved Dev ID A",
            "GeForce RTX 3060 Engineering Sample",
            "Initial DevID",
            "Radeon Graphics",
            "Radeon RX 7900 XT/7900 XTX",
            "TS4 / B100",
            "A\u{1b}[2J",
            "größe",
            "...",
        ] {
            assert_eq!(short_name(product), None, "{product}");
        }
    }

    #[test]
    fn memory_is_what_the_name_states_once() {
        assert_eq!(stated_memory_mib("H100 SXM5 80GB"), Some(81_920));
        assert_eq!(stated_memory_mib("GH200 144G HBM3e"), Some(147_456));
        for none in ["GeForce RTX 5070", "GH200 120GB / 480GB", "RTX 3080 10GB 12GB", "99999GB", "0GB", "GB"] {
            assert_eq!(stated_memory_mib(none), None, "{none}");
        }
    }

    #[test]
    fn a_form_that_one_name_leaves_out_is_no_difference() {
        assert!(agree("h100-sxm", "h100") && agree("h100", "h100-pcie") && agree("rtx5070", "rtx5070"));
        assert!(!agree("h100-sxm", "h100-pcie") && !agree("h100", "h200") && !agree("rtx5070", "rtx5070ti"));
    }
}
