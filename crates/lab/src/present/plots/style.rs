//! How the pictures look: colours for light and dark, sizes for a screen and a phone.
//!
//! The colours are the hues of Okabe and Ito ("Color Universal Design", 2008), moved apart in lightness until
//! every pair differs also for eyes without red, green or blue cones, and dark or light enough to be seen on
//! the paper. The tests hold them to both.

/// The colours on white. `--plot-on-N` is the colour of text on `--plot-N`.
macro_rules! light {
    () => {
        "color-scheme:light;--plot-paper:#ffffff;--plot-ink:#1a1e25;--plot-muted:#59616b;\
         --plot-grid:#e3e6ea;--plot-1:#003c8a;--plot-2:#c12d00;--plot-3:#007561;--plot-4:#de67ae;\
         --plot-5:#ab9148;--plot-6:#149aed;--plot-7:#1a1e25;--plot-on-1:#ffffff;--plot-on-2:#ffffff;\
         --plot-on-3:#ffffff;--plot-on-4:#101214;--plot-on-5:#101214;--plot-on-6:#101214;\
         --plot-on-7:#ffffff;--plot-heat-1:#c9ebff;--plot-heat-2:#9bd5ff;--plot-heat-3:#6fbaf8;\
         --plot-heat-4:#469de0;--plot-heat-5:#2f82c1;--plot-heat-6:#25699b;--plot-heat-7:#1d4f77;\
         --plot-heat-8:#14324a;"
    };
}

/// The colours on black.
macro_rules! dark {
    () => {
        "color-scheme:dark;--plot-paper:#15181c;--plot-ink:#e6e8eb;--plot-muted:#a0a9b4;\
         --plot-grid:#2c323a;--plot-1:#2682e6;--plot-2:#fe7606;--plot-3:#00c094;--plot-4:#b65396;\
         --plot-5:#f9dd39;--plot-6:#9acbfe;--plot-7:#f2f4f6;--plot-on-1:#000000;--plot-on-2:#000000;\
         --plot-on-3:#000000;--plot-on-4:#000000;--plot-on-5:#000000;--plot-on-6:#000000;\
         --plot-on-7:#000000;--plot-heat-1:#0d3350;--plot-heat-2:#014875;--plot-heat-3:#00619c;\
         --plot-heat-4:#127cc0;--plot-heat-5:#3697df;--plot-heat-6:#5db3f8;--plot-heat-7:#8ccfff;\
         --plot-heat-8:#c6eeff;"
    };
}

/// The style that the pictures need, once per page in a `<style>` element. A page may set its own colours by
/// defining the `--plot-...` properties after it. Light or dark follows the reader's system; an element of
/// class `plot-light` or `plot-dark` decides for what is within it. Printed pictures are light.
pub const PLOT_STYLE: &str = concat!(
    ":root,.plot-light{",
    light!(),
    "}\n",
    "@media screen and (prefers-color-scheme:dark){:root{",
    dark!(),
    "}",
    ".plot-light{",
    light!(),
    "}}\n",
    "@media screen{.plot-dark{",
    dark!(),
    "}}\n",
    ".plot{display:block;width:100%;max-width:600px;height:auto;overflow:visible;color:var(--plot-ink);\
     font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;\
     font-size:11.5px;font-variant-numeric:tabular-nums}\n",
    ".plot text{fill:var(--plot-ink)}\n",
    ".plot .plot-title{font-size:14px;font-weight:600}\n",
    ".plot .plot-tick,.plot .plot-label{fill:var(--plot-muted)}\n",
    // What stands on curves and grid lines is cut free by a rim of paper.
    ".plot .plot-note{font-size:.92em;paint-order:stroke;stroke:var(--plot-paper);stroke-width:3px;\
     stroke-linejoin:round}\n",
    ".plot-grid,.plot-axis,.plot-mark,.plot-line,.plot-whisker{fill:none}\n",
    ".plot-grid{stroke:var(--plot-grid);stroke-width:.8}\n",
    ".plot-axis{stroke:var(--plot-muted);stroke-width:1}\n",
    ".plot-mark{stroke:var(--plot-muted);stroke-width:1;stroke-dasharray:3 2.5}\n",
    ".plot-line{stroke:var(--plot-colour);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}\n",
    ".plot-busy{stroke-width:1.2}\n",
    ".plot-band{fill:var(--plot-colour);fill-opacity:.18}\n",
    ".plot-marker{fill:var(--plot-colour);stroke:var(--plot-paper);stroke-width:1}\n",
    ".plot-bar{fill:var(--plot-colour);stroke:var(--plot-paper);stroke-width:1}\n",
    ".plot .plot-inside{fill:var(--plot-on);font-weight:600;font-size:.92em}\n",
    ".plot-whisker{stroke:var(--plot-colour);stroke-width:2}\n",
    ".plot-hollow{fill:var(--plot-paper);stroke:var(--plot-colour);stroke-width:2}\n",
    ".plot-neutral{fill:none;stroke:var(--plot-ink);stroke-width:1.2}\n",
    ".plot-cells{fill:none;shape-rendering:crispEdges}\n",
    ".plot-c1{--plot-colour:var(--plot-1);--plot-on:var(--plot-on-1)}\n",
    ".plot-c2{--plot-colour:var(--plot-2);--plot-on:var(--plot-on-2)}\n",
    ".plot-c3{--plot-colour:var(--plot-3);--plot-on:var(--plot-on-3)}\n",
    ".plot-c4{--plot-colour:var(--plot-4);--plot-on:var(--plot-on-4)}\n",
    ".plot-c5{--plot-colour:var(--plot-5);--plot-on:var(--plot-on-5)}\n",
    ".plot-c6{--plot-colour:var(--plot-6);--plot-on:var(--plot-on-6)}\n",
    ".plot-c7{--plot-colour:var(--plot-7);--plot-on:var(--plot-on-7)}\n",
    ".plot-d2 .plot-line{stroke-dasharray:6.5 5}\n",
    ".plot-d3 .plot-line{stroke-dasharray:.1 4.5}\n",
    ".plot-d4 .plot-line{stroke-dasharray:9 5 .1 5}\n",
    ".plot-d5 .plot-line{stroke-dasharray:3 4.5}\n",
    ".plot-d6 .plot-line{stroke-dasharray:12 5 2.5 5}\n",
    ".plot-d7 .plot-line{stroke-dasharray:9 4.5 .1 4.5 .1 4.5}\n",
    ".plot-h1{fill:var(--plot-heat-1);stroke:var(--plot-heat-1)}\n",
    ".plot-h2{fill:var(--plot-heat-2);stroke:var(--plot-heat-2)}\n",
    ".plot-h3{fill:var(--plot-heat-3);stroke:var(--plot-heat-3)}\n",
    ".plot-h4{fill:var(--plot-heat-4);stroke:var(--plot-heat-4)}\n",
    ".plot-h5{fill:var(--plot-heat-5);stroke:var(--plot-heat-5)}\n",
    ".plot-h6{fill:var(--plot-heat-6);stroke:var(--plot-heat-6)}\n",
    ".plot-h7{fill:var(--plot-heat-7);stroke:var(--plot-heat-7)}\n",
    ".plot-h8{fill:var(--plot-heat-8);stroke:var(--plot-heat-8)}\n",
    // A phone shows the picture at two thirds of its size: there the text must be larger. Room is reserved
    // for it.
    "@media (max-width:480px){.plot{font-size:15px}.plot .plot-title{font-size:16px}\
     .plot .plot-note,.plot .plot-inside{font-size:13.5px}}\n",
);

/// A quiet style for the page around the pictures: text, tables, figures in two columns where there is room.
/// Uses the colours of `PLOT_STYLE`, which must come before it.
pub const PAGE_STYLE: &str = "\
body{margin:0 auto;padding:1rem;max-width:78rem;background:var(--plot-paper);color:var(--plot-ink);\
font:16px/1.5 system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif}
h1{font-size:1.6rem;line-height:1.25}h2{font-size:1.2rem;margin-top:2.2em}
p,ul,ol{max-width:44rem}
a{color:inherit}
code,pre{font-family:ui-monospace,'SF Mono',Menlo,Consolas,monospace;font-size:.9em}
pre{overflow-x:auto}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:2.2rem 2.5rem}
figure{margin:0}figcaption{color:var(--plot-muted);font-size:.9rem;max-width:600px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.95rem}
th{text-align:left;font-weight:600;border-bottom:1.5px solid var(--plot-ink)}
td{border-bottom:1px solid var(--plot-grid)}
th,td{padding:.3em .9em .3em 0;vertical-align:baseline}
td.number,th.number{text-align:right}
@media print{figure{break-inside:avoid}}
";

#[cfg(test)]
mod tests {
    use super::*;

    const LIGHT: &str = light!();
    const DARK: &str = dark!();

    /// Linear red, green and blue.
    type Colour = [f64; 3];

    fn colour(block: &str, name: &str) -> Colour {
        let property = format!("--plot-{name}:#");
        let start = block.find(&property).unwrap_or_else(|| panic!("no {property}")) + property.len();
        [0, 2, 4].map(|offset| {
            let channel = u8::from_str_radix(&block[start + offset..start + offset + 2], 16).unwrap();
            let share = f64::from(channel) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        })
    }

    /// The contrast of WCAG 2.1, 1 to 21.
    fn contrast(one: Colour, other: Colour) -> f64 {
        let luminance = |colour: Colour| dot([0.2126, 0.7152, 0.0722], colour) + 0.05;
        let (one, other) = (luminance(one), luminance(other));
        one.max(other) / one.min(other)
    }

    fn dot(left: Colour, right: Colour) -> f64 {
        left.iter().zip(right).map(|(left, right)| left * right).sum()
    }

    /// Full loss of one kind of cones: Machado, Oliveira and Fernandes, "A Physiologically-based Model for
    /// Simulation of Color Vision Deficiency", 2009, table 1. The first is the usual eye.
    const EYES: [[Colour; 3]; 4] = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    ];

    /// The distance in Oklab (Ottosson 2020); 0.02 is just noticeable side by side.
    fn difference(eye: [Colour; 3], one: Colour, other: Colour) -> f64 {
        let oklab = |colour: Colour| {
            let seen = eye.map(|row| dot(row, colour).clamp(0.0, 1.0));
            let cones = [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ];
            let cones = cones.map(|row| dot(row, seen).cbrt());
            let axes = [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ];
            axes.map(|row| dot(row, cones))
        };
        let (one, other) = (oklab(one), oklab(other));
        one.iter().zip(other).map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn text_and_series_stand_out_from_the_paper_in_light_and_dark() {
        for block in [LIGHT, DARK] {
            let paper = colour(block, "paper");
            assert!(contrast(colour(block, "ink"), paper) >= 7.0);
            assert!(contrast(colour(block, "muted"), paper) >= 4.5);
            for series in 1..=7 {
                let fill = colour(block, &series.to_string());
                assert!(contrast(fill, paper) >= 3.0, "series {series}");
                assert!(
                    contrast(fill, colour(block, &format!("on-{series}"))) >= 4.5,
                    "text on series {series}"
                );
            }
        }
    }

    #[test]
    fn every_pair_of_series_differs_for_every_eye() {
        for block in [LIGHT, DARK] {
            for eye in EYES {
                for (one, other) in (1..=7).flat_map(|one| (1..one).map(move |other| (one, other))) {
                    let [left, right] = [one, other].map(|series: u32| colour(block, &series.to_string()));
                    let difference = difference(eye, left, right);
                    assert!(difference >= 0.1, "series {one} and {other}: {difference}");
                }
            }
        }
    }

    #[test]
    fn the_heat_goes_steadily_away_from_the_paper() {
        for block in [LIGHT, DARK] {
            let heats: Vec<f64> = (1..=8)
                .map(|level| contrast(colour(block, &format!("heat-{level}")), colour(block, "paper")))
                .collect();
            assert!(heats[0] >= 1.15, "the weakest is seen at all: {}", heats[0]);
            assert!(heats.is_sorted_by(|weaker, stronger| weaker * 1.15 < *stronger), "{heats:?}");
        }
    }

    #[test]
    fn the_style_is_balanced_small_and_safe_within_html() {
        for style in [PLOT_STYLE, PAGE_STYLE] {
            assert_eq!(style.matches('{').count(), style.matches('}').count());
            assert!(style.len() < 8_000, "{} bytes", style.len());
            assert!(!style.contains('<') && !style.contains("url(") && !style.contains("@import"));
        }
    }
}
