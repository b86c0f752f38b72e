#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The schema checker itself: each kind of fault is found."""
import json
import pathlib
import sys
import tempfile
import unittest

from check_schemas import (check_document, check_files, check_output, check_requests, check_schema, check_verbs,
                           described_cases, load)

GOOD = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "cluster",
    "type": "object",
    "properties": {"nodes": {"type": "integer", "minimum": 1}, "format": {}, "version": {}},
    "required": ["nodes"],
    "additionalProperties": False,
}


class Checker(unittest.TestCase):
    def test_schema(self):
        self.assertEqual(check_schema(GOOD), [])
        nested = {"type": "array", "items": {"properties": {"x": {}}}}
        for broken in ({"type": "objekt"}, {"title": ""}, {"$schema": "other"}, {"definitions": {"a": nested}}):
            with self.subTest(broken=broken):
                self.assertEqual(len(check_schema({**GOOD, **broken})), 1)

    def test_requests(self):
        with tempfile.TemporaryDirectory() as folder:
            request = pathlib.Path(folder) / "request.json"
            for document, schema, count in (({"nodes": 1}, GOOD, 0), ({}, GOOD, 1),
                                            ({"nodes": 1}, {**GOOD, "additionalProperties": True}, 1)):
                request.write_text(json.dumps(document))
                with self.subTest(document=document, schema=schema):
                    faults, checked = check_requests(pathlib.Path(folder), schema)
                    self.assertEqual((len(faults), checked), (count, 1))

    def test_properties_of_version_2(self):
        plain, described = {"type": "number"}, {"type": "number", "description": "A rate."}
        header = {"format": described, "version": {"const": 2, "description": "Version."}}

        def faults(version=2, definitions=None, **properties):
            header["version"]["const"] = version
            return len(check_schema({**GOOD, "required": [], "definitions": definitions or {},
                                     "properties": {**header, **properties}}))

        self.assertEqual(faults(rate=described), 0)
        nested = {"description": "A list.", "items": {"properties": {"x": plain}, "additionalProperties": False}}
        alias, chain = {"$ref": "#/definitions/rate"}, {"$ref": "#/definitions/alias"}
        for count, definitions, value in ((1, {}, plain), (1, {}, nested), (1, {}, alias), (0, {"rate": described}, alias),
                                          (1, {"rate": plain}, alias), (0, {"rate": plain}, {**alias, **described}),
                                          (0, {"alias": alias, "rate": described}, chain),
                                          (1, {"alias": chain}, chain), (1, {}, {"$ref": "other.json"})):
            with self.subTest(definitions=definitions, value=value):
                self.assertEqual(faults(definitions=definitions, rate=value), count)
                self.assertEqual(faults(version=1, definitions=definitions, rate=value), 0)
        for name in ("time_ms", "t_us", "t_ns", "size_gb", "memory_gib", "size_mib", "rate_gb_s", "tflop_s", "x_tflop_s",
                     "rate_tflops", "share_percent"):
            with self.subTest(name=name):
                self.assertEqual(faults(**{name: described}), 1)
                self.assertEqual(faults(version=1, **{name: described}), 0)
        for name in ("time_s", "size_bytes", "rate_bytes_per_s", "flop_per_s", "items", "status"):
            with self.subTest(name=name):
                self.assertEqual(faults(**{name: described}), 0)

    def test_cases_that_name_a_schema(self):
        with tempfile.TemporaryDirectory() as tmp:
            described = {"name": "a", "args": ["model", "x"], "schema": "model.json"}
            (pathlib.Path(tmp) / "model.json").write_text(json.dumps([{"name": "b", "args": ["topo"]}, described]))
            self.assertEqual(described_cases(pathlib.Path(tmp)), [described])
        self.assertEqual(check_verbs(["model"], [described]), [])
        self.assertEqual(len(check_verbs(["model", "topo"], [described])), 1)

    def test_document(self):
        self.assertEqual(check_document({"nodes": 4}, GOOD), [])
        for broken in ({}, {"nodes": 0}, {"nodes": 1.5}, {"nodes": 4, "typo": 1}):
            with self.subTest(broken=broken):
                self.assertEqual(len(check_document(broken, GOOD)), 1)

    def test_text_must_be_strict_json(self):
        for text in ('{"a": NaN}', '{"a": 1, "a": 2}', "{} {}", ""):
            with self.subTest(text=text), self.assertRaises(ValueError):
                load(text)

    def test_files_are_found_and_need_their_schema(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "clusters", "a.json")
            file.parent.mkdir()
            good = '{"format": "usp.cluster", "version": 1, "nodes": 4}'
            schemas = {"cluster.v1.schema.json": GOOD}
            for text, known, faults in ((good, schemas, 0), (good, {}, 1), (good.replace("4", '"4"'), schemas, 1),
                                        (good.replace("1", "2"), schemas, 1), ('{"nodes": 4}', schemas, 1),
                                        ('{"version": 1, "nodes": 4}', schemas, 0), ("[]", schemas, 1)):
                file.write_text(text)
                found, checked = check_files(pathlib.Path(folder), known)
                self.assertEqual((len(found), checked), (faults, 1))

    def test_output(self):
        for text, schema, faults in (({"nodes": 4}, "good", 0), ({"nodes": 0}, "good", 1), ({"nodes": 4}, "none", 1)):
            entry = {"args": [json.dumps(text)], "schema": schema}
            self.assertEqual(len(check_output("/bin/echo", entry, pathlib.Path("/"), {"good": GOOD})), faults)
        self.assertEqual(len(check_output("/bin/false", {"args": [], "schema": "good"}, pathlib.Path("/"),
                                          {"good": GOOD})), 1)


if __name__ == "__main__":
    sys.exit(unittest.main())
