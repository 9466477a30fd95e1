// Tenants: what each has of the pools, beside what it is entitled to.

import { count, el, h, percent, setText, show, shownTenant } from "./dom.js";

const SHOWN = 40;

export class TenantsPanel {
  #model;

  constructor(model) {
    this.#model = model;
  }

  paint() {
    const rows = shares(this.#model);
    setText(el("tenants-now"), rows.length > 0 ? `${rows.length} with work` : "");
    show(el("tenants-body"), JSON.stringify(rows), () =>
      rows.length === 0 ? h("p", { className: "hint" }, "No tenant has work in a pool now.") : [table(rows.slice(0, SHOWN)), legend()],
    );
  }
}

/** Shares of admitted sessions, by pool added up; without admission's figures, of the tokens served. */
function shares(model) {
  const tenants = [...model.tenants.values()];
  const isAdmitting = tenants.some((tenant) => tenant.views.length > 0);
  const of = (tenant, name) => tenant.views.reduce((total, view) => total + (view[name] ?? 0), 0);
  const rows = tenants
    .map((tenant) => ({
      id: tenant.id, admitted: of(tenant, "admitted"), lately: of(tenant, "lately"), waiting: of(tenant, "waiting"), weight: of(tenant, "weight"),
      served: tenant.servedTokens, refused: tenant.refused,
    }))
    .filter((row) => row.admitted + row.waiting + row.served + row.refused > 0);
  const total = (name) => rows.reduce((all, row) => all + row[name], 0);
  const has = isAdmitting && total("admitted") > 0 ? "admitted" : "served";
  const [whole, entitled] = [total(has), total("weight")];
  for (const row of rows) {
    row.share = whole > 0 ? row[has] / whole : 0;
    row.entitled = entitled > 0 && row.weight > 0 ? row.weight / entitled : null;
  }
  return rows.sort((a, b) => b.share - a.share || b.waiting - a.waiting || a.id.localeCompare(b.id));
}

function table(rows) {
  const head = ["tenant", "share", "in", "wait", "served", "refused"];
  return h("table", { className: "tenants" },
    h("thead", {}, h("tr", {}, ...head.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, ...rows.map((row) =>
      h("tr", {},
        h("th", { scope: "row", title: row.id }, shownTenant(row.id)),
        h("td", {}, shareBar(row)),
        h("td", { title: `${row.lately.toFixed(1)} on average lately, which counts as much` }, count(row.admitted)),
        ...[row.waiting, row.served].map((figure) => h("td", {}, count(figure))),
        h("td", { className: row.refused > 0 ? "bad" : "" }, count(row.refused)),
      ))));
}

function shareBar(row) {
  const says = `${percent(row.share)}${row.entitled === null ? "" : `, entitled to ${percent(row.entitled)}`}`;
  const bar = h("div", { className: "meter share", role: "img", "aria-label": says, title: says });
  const part = h("i", { className: "runs" });
  part.style.width = `${row.share * 100}%`;
  bar.append(part);
  if (row.entitled !== null) {
    const edge = h("i", { className: "fits" });
    edge.style.left = `${row.entitled * 100}%`;
    bar.append(edge);
  }
  return bar;
}

function legend() {
  return h("p", { className: "keys-of" }, h("span", { className: "k-runs" }, "has"), h("span", { className: "k-fits" }, "is entitled to"));
}
